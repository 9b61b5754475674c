"""The command `ors export`: a record as a dataset for a trainer, or as a table."""

from __future__ import annotations

import json
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

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
    records = _records()
    try:
        if to is Kind.PARQUET:
            table = records.record_table(record)
        else:
            selection = records.Selection.of(record, per_task=per_task, drop_cut=drop_cut, images=images.value)
            table, rows = None, _rows(records, to, selection, min_reward=min_reward, min_gap=min_gap)
            for reason, count in selection.left_out.most_common():
                if count:
                    show_note(f"left out: {count} {reason}")
            if where.suffix == ".jsonl":
                where.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
                _show(len(rows), where, as_json=as_json)
                return
            table = records.dataset(rows)
        table.to_parquet(str(where))
    except ValueError as error:
        raise Misuse(f"{str(record)!r}: {error}") from None
    except OSError as error:
        raise Misuse(f"{str(error.filename or where)!r}: {error.strerror or error}.") from None
    _show(len(table), where, as_json=as_json)


def _show(rows: int, where: Path, *, as_json: bool) -> None:
    if as_json:
        show_json({"rows": rows, "path": str(where)})
    else:
        out().print(f"{rows:,} rows  {printable(where)}", soft_wrap=True)


def _rows(records: Any, to: Kind, selection: Any, *, min_reward: float, min_gap: float) -> list[dict[str, Any]]:
    match to:
        case Kind.DPO:
            return records.preference_rows(selection, min_gap=min_gap)
        case Kind.KTO:
            return records.kto_rows(selection, min_reward=min_reward)
        case _:
            return records.sft_rows(selection, min_reward=min_reward)


def _records() -> Any:
    # By its name, when it is wanted: the client does without TRL and `datasets`, and knows nothing of the bridge.
    try:
        import_module("datasets")
        return import_module("trl_bridge._datasets.records")
    except ImportError as error:
        raise Misuse(
            f"Datasets are made by the bridge, and {error.name!r} is missing: pip install 'ors-client[trl]'."
        ) from None
