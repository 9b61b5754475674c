"""Records -> datasets for TRL's offline trainers: what a model wrote in episodes that went well, or better than others.

Rows are what the model saw, under the names by which it called the tools. What must not be learnt from is left out and
counted, in the log and in the dataset's `info.description`: episodes that the infrastructure broke, that were not
scored, that a budget cut, or whose words are not known.
"""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from ors_client import Block, Message, TextBlock, ToolResultBlock, ToolSpec
from ors_client._shared import checked, flatten, get_logger
from ors_client.formats import OpenAIChat
from ors_client.record import EpisodeRecord, ToolsRecord, read
from trl_bridge._chat.conversation import Chat, to_chat
from trl_bridge._chat.tools import tool_schema

if TYPE_CHECKING:
    from datasets import Dataset  # pyright: ignore[reportMissingTypeStubs] - it has none

logger = get_logger(__name__)

Images = Literal["refuse", "text"]
Row = dict[str, Any]


@checked
def sft_dataset(
    record: str | os.PathLike[str],
    *,
    min_reward: float = 1.0,
    per_task: int | None = None,
    drop_cut: bool = True,
    images: Images = "refuse",
) -> Dataset:
    """Make a dataset for TRL's `SFTTrainer` of the episodes that went well: `messages` and `tools`.

    Args:
        record: The file, as `ors run` and `OpenRewardSpec(record=...)` write it.
        min_reward: The least reward of an episode that is learnt from.
        per_task: At most so many episodes of a task, those with the highest rewards.
        drop_cut: Whether episodes that a budget cut are left out.
        images: What becomes of episodes with images: `"refuse"` raises, as TRL renders such rows without their tools;
            `"text"` puts a text in the place of each.

    Raises:
        OSError: The record can't be read.
        ValueError: It holds no such episode, or one with images.
    """
    selection = Selection.of(record, per_task=per_task, drop_cut=drop_cut, images=images)
    return selection.dataset(_sft_rows(selection, min_reward=min_reward))


@checked
def preference_dataset(
    record: str | os.PathLike[str],
    *,
    min_gap: float = 0.5,
    per_task: int | None = None,
    drop_cut: bool = True,
    images: Images = "refuse",
) -> Dataset:
    """Make a dataset for TRL's `DPOTrainer` of attempts at one task: `prompt`, `chosen`, `rejected` and `tools`.

    The best attempt is paired with the worst, the next with the next; each is in one pair.

    Args:
        record: See `sft_dataset`, as for the rest.
        min_gap: By how much the rewards of a pair differ at least.
        per_task: At most so many pairs of a task, those whose rewards differ most.
        drop_cut: Whether episodes that a budget cut are left out.
        images: What becomes of episodes with images.

    Raises:
        OSError: The record can't be read.
        ValueError: It holds no such pair, or an episode with images.
    """
    selection = Selection.of(record, per_task=per_task, drop_cut=drop_cut, images=images)
    return selection.dataset(_preference_rows(selection, min_gap=min_gap))


@checked
def kto_dataset(
    record: str | os.PathLike[str],
    *,
    min_reward: float = 1.0,
    per_task: int | None = None,
    drop_cut: bool = True,
    images: Images = "refuse",
) -> Dataset:
    """Make a dataset for TRL's `KTOTrainer` of all attempts: `prompt`, `completion`, `label` and `tools`.

    Args:
        record: See `sft_dataset`, as for the rest.
        min_reward: The reward from which an episode's label is true.
        per_task: At most so many episodes of a task, those with the highest rewards.
        drop_cut: Whether episodes that a budget cut are left out.
        images: What becomes of episodes with images.

    Raises:
        OSError: The record can't be read.
        ValueError: It holds no such episode, or one with images.
    """
    selection = Selection.of(record, per_task=per_task, drop_cut=drop_cut, images=images)
    return selection.dataset(_kto_rows(selection, min_reward=min_reward))


@dataclass(slots=True)
class Selection:
    """The episodes of a record that can be learnt from.

    Args:
        rollouts: In the record's order.
        per_task: See `sft_dataset`.
        left_out: How many episodes were left out, by the reason.
    """

    rollouts: list[Rollout]
    per_task: int | None = None
    left_out: Counter[str] = field(default_factory=Counter[str])

    @classmethod
    def of(
        cls,
        record: str | os.PathLike[str],
        *,
        per_task: int | None,
        drop_cut: bool,
        images: Images,
    ) -> Selection:
        """Read a record.

        Raises:
            OSError: It can't be read.
            ValueError: An option makes no sense, or an episode has images.
        """
        if per_task is not None and per_task < 1:
            raise ValueError(f"per_task is a positive number or None, not {per_task!r}.")
        if images not in {"refuse", "text"}:
            raise ValueError(f"images is 'refuse' or 'text', not {images!r}.")
        rollouts: list[Rollout] = []
        left_out: Counter[str] = Counter()
        with_images = 0
        for episode in read(record):
            reason = _unfit(episode, drop_cut=drop_cut)
            if reason is not None:
                left_out[reason] += 1
                continue
            messages = [Message.model_validate(message) for message in _conversation(episode)]
            with_images += any(block.type == "image" for message in messages for block in flatten(message.blocks))
            rollouts.append(_rollout(episode, messages))
        if with_images and images == "refuse":
            count = "1 episode has" if with_images == 1 else f"{with_images} episodes have"
            raise ValueError(
                f"{count} images, and TRL renders rows with images without their tools. To put a text in the place of "
                "each image: images='text' (--images text)."
            )
        return cls(rollouts, per_task, left_out)

    def tasks(self) -> list[list[Rollout]]:
        """Return the episodes of each task, the best first; equal ones stay in the record's order."""
        found: defaultdict[str, list[Rollout]] = defaultdict(list)
        for rollout in self.rollouts:
            found[rollout.task].append(rollout)
        return [sorted(rollouts, key=lambda rollout: -rollout.reward) for rollouts in found.values()]

    def chosen(self) -> list[Rollout]:
        """Return the episodes after `per_task`, in the record's order."""
        kept = {id(rollout) for rollouts in self.tasks() for rollout in rollouts[: self.per_task]}
        self.left_out["beyond the best of a task"] += len(self.rollouts) - len(kept)
        return [rollout for rollout in self.rollouts if id(rollout) in kept]

    def dataset(self, rows: Sequence[Row]) -> Dataset:
        """Make a dataset in which each message and each tool comes back as it was, with no key of another's.

        Raises:
            ValueError: There are no rows.
        """
        # Imported here since it takes a second, which importing the bridge should not.
        import datasets  # noqa: PLC0415  # pyright: ignore[reportMissingTypeStubs] - it has none

        left_out = [f"{count} {reason}" for reason, count in self.left_out.most_common() if count]
        if not rows:
            raise ValueError(f"The record has no episode for this. Left out: {', '.join(left_out) or 'none'}.")
        if left_out:
            logger.info("Episodes that were left out: %s.", ", ".join(left_out))
        features = datasets.Features(
            {
                name: datasets.List(datasets.Json()) if isinstance(value, list) else datasets.Value("bool")
                for name, value in rows[0].items()
            }
        )
        about = datasets.DatasetInfo(features=features, description="\n".join(f"left out: {each}" for each in left_out))
        make: Any = datasets.Dataset
        return make.from_list(list(rows), info=about)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One episode as a chat.

    Args:
        task: Of which task, with this prompt and these tools.
        reward: What it came to.
        prompt: What the model was shown first.
        completion: What followed.
        tools: As the model was told of them.
    """

    task: str
    reward: float
    prompt: Chat
    completion: Chat
    tools: list[dict[str, Any]]


def _sft_rows(selection: Selection, *, min_reward: float) -> list[Row]:
    good = [rollout for rollout in selection.rollouts if rollout.reward >= min_reward]
    selection.left_out[f"with a reward below {min_reward:g}"] += len(selection.rollouts) - len(good)
    selection.rollouts = good
    return [
        {"messages": [*rollout.prompt, *rollout.completion], "tools": rollout.tools} for rollout in selection.chosen()
    ]


def _preference_rows(selection: Selection, *, min_gap: float) -> list[Row]:
    if min_gap <= 0:
        raise ValueError(f"min_gap is a positive number, not {min_gap!r}: of equal attempts none is preferred.")
    rows: list[Row] = []
    paired = 0
    for rollouts in selection.tasks():
        pairs = [
            (high, low)
            for high, low in zip(rollouts[: len(rollouts) // 2], reversed(rollouts), strict=False)
            if high.reward - low.reward >= min_gap
        ][: selection.per_task]
        paired += 2 * len(pairs)
        rows += [
            {"prompt": high.prompt, "chosen": high.completion, "rejected": low.completion, "tools": high.tools}
            for high, low in pairs
        ]
    selection.left_out["without a partner"] += len(selection.rollouts) - paired
    return rows


def _kto_rows(selection: Selection, *, min_reward: float) -> list[Row]:
    return [
        {
            "prompt": rollout.prompt,
            "completion": rollout.completion,
            "label": rollout.reward >= min_reward,
            "tools": rollout.tools,
        }
        for rollout in selection.chosen()
    ]


def _unfit(episode: EpisodeRecord, *, drop_cut: bool) -> str | None:
    if episode.status.startswith("failed"):
        return "failed"
    if drop_cut and episode.status.startswith("cut"):
        return "cut"
    if episode.reward is None:
        return "not scored"
    if episode.tools is None or episode.opening is None:
        return "without the model's words"
    return None


def _conversation(episode: EpisodeRecord) -> list[dict[str, Any]]:
    followed = episode.conversation[len(episode.opening_messages) :]
    return [*(episode.shown if episode.shown is not None else episode.opening_messages), *followed]


def _rollout(episode: EpisodeRecord, messages: list[Message]) -> Rollout:
    tools = episode.tools or ToolsRecord()
    shown = len(messages) - (len(episode.conversation) - len(episode.opening_messages))
    in_training = episode.run is not None and episode.run.kind == "training"
    empty = "(no output)" if in_training else ""
    messages = [message.model_copy(update={"blocks": list(_mark_errors(message.blocks))}) for message in messages]
    aliases = dict(tools.names)
    prompt = to_chat(messages[:shown], aliases=aliases, images=False, empty=empty)
    whole = to_chat(messages, aliases=aliases, images=False, empty=empty)
    described = _tools(tools, in_training=in_training)
    position = (episode.environment, episode.split, episode.index)
    return Rollout(
        task=json.dumps([position, prompt, described], sort_keys=True),
        reward=cast("float", episode.reward),
        prompt=prompt,
        completion=whole[len(prompt) :],
        tools=described,
    )


def _mark_errors(blocks: Iterable[Block]) -> Iterable[Block]:
    """Yield blocks; a result that is an error says so in its text, as in the requests of an evaluation."""
    for block in blocks:
        if isinstance(block, ToolResultBlock) and block.is_error:
            yield block.model_copy(update={"blocks": [TextBlock(text="[error]"), *block.blocks]})
        else:
            yield block


def _tools(tools: ToolsRecord, *, in_training: bool) -> list[dict[str, Any]]:
    if not in_training:
        return OpenAIChat(tools.tools).tools
    return [tool_schema(spec, tools.names.get(spec.name, spec.name)) for spec in _once(tools.tools)]


def _once(specs: Iterable[ToolSpec]) -> list[ToolSpec]:
    return list({spec.name: spec for spec in specs}.values())
