"""The command `ors export`: a record as a dataset for a trainer, or as a table."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from ors_client import JSONObject
from ors_client.record import EpisodeRecord, read

from .options import Misuse
from .output import out, printable, show_json, show_note

_CUT = "Whether episodes that a budget cut are left out."


class Kind(StrEnum):
    """What a record is made into."""

    SFT = "sft"
    DPO = "dpo"
    KTO = "kto"
    PARQUET = "parquet"


class Images(StrEnum):
    """What becomes of images."""

    REFUSE = "refuse"
    TEXT = "text"


def export(
    record: Annotated[Path, typer.Argument(metavar="RECORD", help="The episodes, as JSON lines.")],
    *,
    to: Annotated[
        Kind, typer.Option("--to", help="For a trainer of TRL, or the record itself as a table, a row an episode.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="PATH", help=".parquet or .jsonl; left out, beside the record."),
    ] = None,
    min_reward: Annotated[
        float, typer.Option("--min-reward", metavar="R", help="sft: the least reward; kto: from which a label is true.")
    ] = 1.0,
    min_gap: Annotated[
        float, typer.Option("--min-gap", metavar="G", help="dpo: by how much the rewards of a pair differ at least.")
    ] = 0.5,
    per_task: Annotated[
        int | None, typer.Option("--per-task", min=1, metavar="N", help="The best N rows of a task, by reward.")
    ] = None,
    drop_cut: Annotated[bool, typer.Option("--drop-cut/--keep-cut", help=_CUT)] = True,
    images: Annotated[
        Images, typer.Option("--images", help="What becomes of episodes with images: an error, or a text for each.")
    ] = Images.REFUSE,
    as_json: Annotated[bool, typer.Option("--json", help="Answer in JSON, for programs.")] = False,
) -> None:
    """Make a dataset of a record: of episodes that went well (sft), of pairs (dpo), with labels (kto), or of all."""
    where = output or record.with_suffix(".parquet" if to is Kind.PARQUET else f".{to.value}.parquet")
    if where.suffix not in {".parquet", ".jsonl"} or (to is Kind.PARQUET and where.suffix != ".parquet"):
        kinds = ".parquet" if to is Kind.PARQUET else ".parquet or .jsonl"
        raise Misuse(f"What is written is told by the name's end, {kinds}: not {str(where)!r}.")
    if where.exists() and record.exists() and where.samefile(record):
        raise Misuse("The dataset would take the record's place; name another with -o PATH.")
    options: dict[str, Any] = {"per_task": per_task, "drop_cut": drop_cut, "images": images.value}
    try:
        if to is Kind.PARQUET:
            table = _record_table(record)
        else:
            table = _training_table(record, to, options, min_reward=min_reward, min_gap=min_gap)
        if where.suffix == ".jsonl":
            where.write_text("".join(json.dumps(row) + "\n" for row in table), encoding="utf-8")
        else:
            table.to_parquet(str(where))
    except ValueError as error:
        raise Misuse(f"{str(record)!r}: {error}") from None
    except OSError as error:
        raise Misuse(f"{str(error.filename or where)!r}: {error.strerror or error}.") from None
    for line in table.info.description.splitlines():
        show_note(line)
    if as_json:
        show_json({"rows": len(table), "path": str(where)})
    else:
        out().print(f"{len(table):,} rows  {printable(where)}", soft_wrap=True)


def _training_table(record: Path, to: Kind, options: dict[str, Any], *, min_reward: float, min_gap: float) -> Any:
    _module("datasets")  # without which the bridge can be imported and makes no dataset
    bridge = _module("trl_bridge")
    match to:
        case Kind.DPO:
            return bridge.preference_dataset(record, min_gap=min_gap, **options)
        case Kind.KTO:
            return bridge.kto_dataset(record, min_reward=min_reward, **options)
        case _:
            return bridge.sft_dataset(record, min_reward=min_reward, **options)


def _record_table(record: Path) -> Any:
    """Make a table with a row for each episode; what is nested stands there as JSON text."""
    datasets = _module("datasets")
    rows = [_flat(episode) for episode in read(record)]
    if not rows:
        raise ValueError("The record has no episode.")
    return datasets.Dataset.from_list(rows)


def _flat(episode: EpisodeRecord) -> JSONObject:
    fields: JSONObject = dict.fromkeys(EpisodeRecord.model_fields)
    fields |= episode.model_dump(mode="json") | {"messages": episode.conversation}
    scalars = (type(None), str, bool, int, float)
    return {name: value if isinstance(value, scalars) else json.dumps(value) for name, value in fields.items()}


def _module(name: str) -> Any:
    # By its name, when it is wanted: the client does without TRL and `datasets`, and lies below the bridge.
    try:
        return import_module(name)
    except ImportError as error:
        raise Misuse(f"Datasets need {error.name!r}, which is missing: pip install 'ors-client[trl]'.") from None
