"""What TRL's asynchronous trainer takes for granted and a machine without a GPU does not have.

Two things: a name of the device, and a kernel of flash attention, in plain torch here. Everything else of the trainer
and of its rollout process runs as it is.
"""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_ends: torch.Tensor,
    key_ends: torch.Tensor,
    *_: Any,
    softmax_scale: float | None = None,
    **__: Any,
) -> torch.Tensor:
    """Attend causally within each of several sequences that lie end to end; the last query sees the last key."""
    import torch

    scale = softmax_scale or 1 / math.sqrt(query.shape[-1])
    groups = query.shape[1] // key.shape[1]
    out = torch.empty_like(query)
    pairs = zip(query_ends.tolist(), query_ends[1:].tolist(), key_ends.tolist(), key_ends[1:].tolist(), strict=False)
    for start, end, key_start, key_end in pairs:
        q = query[start:end].transpose(0, 1)
        k, v = (each[key_start:key_end].transpose(0, 1).repeat_interleave(groups, dim=0) for each in (key, value))
        allowed = torch.ones(end - start, key_end - key_start, dtype=torch.bool).tril(key_end - key_start - end + start)
        weights = (q @ k.transpose(1, 2) * scale).masked_fill(~allowed, -math.inf).softmax(-1)
        out[start:end] = (weights @ v).transpose(0, 1)
    return out


def install(monkeypatch: Any) -> None:
    """Put both in their places for the length of a test."""
    import torch
    from trl.experimental.async_grpo import packing

    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _device: "no GPU")
    monkeypatch.setattr(packing, "_flash_attn", lambda: SimpleNamespace(flash_attn_varlen_func=attention))
