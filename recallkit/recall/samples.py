"""Prompts and generations to look at: all, or a sample of each task, model and verdict, from the documents tables of a comparison.

A verdict is of one generation: `right` if it contains the value, else `cut` if the value was only in what was cut off the prompt, else
`wrong`. Rows are taken in an order of chance that is the same for all models, so that the samples of models overlap.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.exports import compact_json
from recallkit.errors import UserError, printable
from recallkit.recall.run import documents_path
from recallkit.storage import schemas
from recallkit.storage.artifacts import read_manifest

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.recall.tables import RecallTables

    Row = Mapping[str, Any]

VERDICTS = ("right", "wrong", "cut")

MOST_BYTES = 1_200_000
"""Most bytes of all samples of a page."""

_AROUND, _END, _GENERATION = 200, 320, 400
"""Characters shown around the value, of the prompt's end, and of a generation."""


@dataclass(frozen=True, slots=True)
class Samples:
    """`data`: JSON for a page's script (see `read_samples`); `shown` of `prompts` are in it."""

    data: str
    shown: int
    prompts: int


def read_samples(folder: Path, tables: RecallTables, most_bytes: int = MOST_BYTES) -> Samples:
    """Samples of the comparison in `folder`, whose documents tables are beside its parent.

    Fields: `models`, `tasks`, `totals` (task x model x verdict: prompts), `prompts`: each with its `task`, `document`, `key`, `value`,
    `text` (passages: [whether it was cut off, parts], the odd ones of the parts being the value), `cut` (characters cut off), and
    `answers`, of each model [verdict, parts of the generation, NLL of the answer in nats per token]. The same prompt is cut otherwise for
    another model: passages are those that the first model has read.

    Raises UserError if documents are missing or are not those that were compared.
    """
    manifest = read_manifest(folder / "recall.parquet")
    models, variants = manifest["models"], manifest["tasks"]
    tasks = tables.recall["task"].unique(maintain_order=True).to_list()
    keys = manifest["options"]["models"]
    found: dict[str, list[Sequence[Row]]] = {}
    for task, variant in zip(tasks, variants, strict=True):
        paths = [documents_path(folder.parent.parent, key, variant) for key in keys]
        found[task] = [_rows(path, tables.recall, model, task) for path, model in zip(paths, models, strict=True)]
    chosen = _choose(found, most_bytes)
    totals = [[[sum(verdict(row) == name for row in rows) for name in VERDICTS] for rows in found[task]] for task in tasks]
    facts = compact_json({"models": list(map(printable, models)), "tasks": list(map(printable, tasks)), "totals": totals})
    entries = ",\n".join(entry for _, entry in sorted(chosen.items()))
    return Samples(f'{facts[:-1]},"prompts":[{entries}]}}', len(chosen), sum(len(of[0]) for of in found.values()))


def verdict(row: Row) -> str:
    """One of VERDICTS, of a row of a documents table."""
    return "right" if row["contains"] else "cut" if row["answer_cut"] else "wrong"


def _rows(path: Path, recall: pl.DataFrame, model: str, task: str) -> Sequence[Row]:
    """The rows of a documents table. Raises UserError if they are not those of the comparison."""
    if not path.is_file():
        raise UserError("this table of prompts is missing", where=path, remedy="evaluate these models again, or restore the folders")
    rows = schemas.read_frame(path).to_dicts()
    told = recall.filter(model=model, task=task).row(0, named=True)
    if len(rows) != told["num_rows"] or sum(row["contains"] for row in rows) != round(told["accuracy"] * told["num_rows"]):
        raise UserError(
            "evaluated again with another result since the comparison", where=path, remedy="run the same `recallkit eval-recall` again"
        )
    return rows


def _choose(found: Mapping[str, Sequence[Sequence[Row]]], most_bytes: int) -> dict[tuple[int, int], str]:
    """(task, row) -> JSON of the prompts shown: in turn the next one of each sample, as long as there is room."""
    samples = []
    for number, (task, of_models) in enumerate(found.items()):
        order = sorted(range(len(of_models[0])), key=lambda place: hashlib.blake2b(f"{task} {place}".encode(), digest_size=8).digest())
        for rows, name in itertools.product(of_models, VERDICTS):
            alike = (place for place in order if verdict(rows[place]) == name)
            samples.append([(number, place) for place in alike])
    in_turn: Iterable[tuple[int, int] | None] = itertools.chain.from_iterable(itertools.zip_longest(*samples))
    tables, chosen, size = list(found.values()), dict[tuple[int, int], str](), 0
    for number, place in dict.fromkeys(each for each in in_turn if each is not None):
        entry = _entry(number, [rows[place] for rows in tables[number]])
        size += len(entry.encode())
        if size > most_bytes:
            break
        chosen[number, place] = entry
    return chosen


def _entry(task: int, rows: Sequence[Row]) -> str:
    """The JSON of one prompt, with every model's row."""
    first = rows[0]
    return compact_json(
        {
            "task": task,
            "document": first["doc_id"],
            "key": first["key"],
            "value": first["value"],
            "text": passages(first["prompt_text"], first["value"], first["characters_cut"]),
            "cut": first["characters_cut"],
            "answers": [
                [
                    verdict(row),
                    _parts(row["generation"][:_GENERATION], row["value"]),
                    None if row["answer_nll"] is None else round(row["answer_nll"], 3),
                ]
                for row in rows
            ],
        }
    )


def passages(prompt: str, value: str, cut: int) -> list[tuple[bool, list[str]]]:
    """What of a prompt is shown: around the latest mention of the value that the model has read, or, cut off, could have; and its end.

    `cut`: characters at the beginning that were cut off. Each passage: whether it was cut off, and its parts, the odd ones the value.
    """

    def shown_from(start: int, stop: int, least: int) -> str:
        """The passage, with dots where something is left out that is not cut off."""
        return f"{'… ' * (start > least)}{prompt[start:stop]}{' …' * (stop < len(prompt))}"

    end = max(cut, len(prompt) - _END)
    mentions = [match.span() for match in re.finditer(re.escape(value), prompt, re.IGNORECASE)]
    read = [span for span in mentions if span[0] >= cut]
    shown = []
    if not read and mentions:
        start, stop = mentions[-1]
        shown.append((True, shown_from(max(0, start - _AROUND), min(max(cut, stop), stop + _AROUND), 0)))
    elif read and read[-1][0] < end:
        start, stop = read[-1]
        if stop + _AROUND >= end:
            end = max(cut, start - _AROUND)
        else:
            shown.append((False, shown_from(max(cut, start - _AROUND), stop + _AROUND, cut)))
    dots = "" if shown and not shown[0][0] else "… " * (end > cut)  # the passage before ends with them
    return [(is_cut, _parts(text, value)) for is_cut, text in [*shown, (False, f"{dots}{prompt[end:]}")]]


def _parts(text: str, value: str) -> list[str]:
    """The text divided at each mention of the value, in any case: the odd parts are the mentions."""
    return re.split(f"({re.escape(value)})", text, flags=re.IGNORECASE)
