"""Prompts and generations to look at: all, or a sample of each task, model and verdict, from the
documents tables of a comparison.

A verdict is of one generation: `right` if it contains the value, else `cut` if the value was only
in what was cut off the prompt, else `wrong`. Rows are taken in an order of chance that is the same
for all models, so that the samples of models overlap.
"""

from __future__ import annotations

import hashlib
import itertools
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.display.exports import compact_json
from recallkit.errors import UserError, printable
from recallkit.recall.run import documents_path
from recallkit.storage import records, schemas
from recallkit.storage.parquet_files import read_manifest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
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

    Fields: `models`, `tasks`, `totals` (task x model x verdict: prompts), `prompts`: each with its
    `task`, `document`, `key`, `value`, `text` (passages: [whether it was cut off, parts], the odd
    ones of the parts being the value), `cut` (characters cut off), and `answers`, of each model
    [verdict, parts of the generation, NLL of the answer in nats per token]. The same prompt is cut
    otherwise for another model: passages are those that the first model has read.

    Raises UserError if documents are missing or are not those that were compared.
    """
    manifest = read_manifest(folder / "recall.parquet", records.Recall)
    models, keys = manifest["models"], manifest["options"]["models"]
    tasks = tables.recall["task"].unique(maintain_order=True).to_list()
    documents: dict[str, list[Sequence[Row]]] = {}
    for task, variant in zip(tasks, manifest["tasks"], strict=True):
        documents[task] = []
        for key, model in zip(keys, models, strict=True):
            path = documents_path(folder.parent.parent, key, variant)
            documents[task].append(_rows(path, tables.recall, model, task))
    prompts = _choose(documents, most_bytes)
    facts = compact_json(
        {
            "models": list(map(printable, models)),
            "tasks": list(map(printable, tasks)),
            "totals": [list(map(_verdicts, documents[task])) for task in tasks],
        },
    )
    entries = ",\n".join(entry for _, entry in sorted(prompts.items()))
    total = sum(len(rows[0]) for rows in documents.values())
    return Samples(f'{facts[:-1]},"prompts":[{entries}]}}', len(prompts), total)


def verdict(row: Row) -> str:
    """One of VERDICTS, of a row of a documents table."""
    if row["contains"]:
        return "right"
    return "cut" if row["answer_cut"] else "wrong"


def _verdicts(rows: Sequence[Row]) -> list[int]:
    """How many rows have each of VERDICTS."""
    numbers = Counter(map(verdict, rows))
    return [numbers[name] for name in VERDICTS]


def _rows(path: Path, recall: pl.DataFrame, model: str, task: str) -> Sequence[Row]:
    """The rows of a documents table. Raises UserError if they are not those of the comparison."""
    if not path.is_file():
        remedy = "evaluate these models again, or restore the folders"
        raise UserError("this table of prompts is missing", where=path, remedy=remedy)
    rows = schemas.read_frame(path).to_dicts()
    summary = recall.filter(model=model, task=task).row(0, named=True)
    right = sum(row["contains"] for row in rows)
    expected = summary["num_rows"], round(summary["accuracy"] * summary["num_rows"])
    if (len(rows), right) != expected:
        problem = "evaluated again with another result since the comparison"
        remedy = "run the same `recallkit eval-recall` again"
        raise UserError(problem, where=path, remedy=remedy)
    return rows


def _choose(
    documents: Mapping[str, Sequence[Sequence[Row]]],
    most_bytes: int,
) -> dict[tuple[int, int], str]:
    """(task, row) -> JSON of the prompts shown: in turn the next one of each sample, as long as
    there is room."""
    samples = []
    for number, (task, of_models) in enumerate(documents.items()):
        digests = [_digest(f"{task} {place}") for place in range(len(of_models[0]))]
        order = sorted(range(len(digests)), key=digests.__getitem__)
        for rows, name in itertools.product(of_models, VERDICTS):
            samples.append([(number, place) for place in order if verdict(rows[place]) == name])
    turns = itertools.chain.from_iterable(itertools.zip_longest(*samples))
    tables, prompts, size = list(documents.values()), dict[tuple[int, int], str](), 0
    for number, place in filter(None, dict.fromkeys(turns)):
        entry = _entry(number, [rows[place] for rows in tables[number]])
        size += len(entry.encode())
        if size > most_bytes:
            break
        prompts[number, place] = entry
    return prompts


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode(), digest_size=8).digest()


def _entry(task: int, rows: Sequence[Row]) -> str:
    """The JSON of one prompt, with every model's row."""
    first, answers = rows[0], []
    for row in rows:
        nll = None if row["answer_nll"] is None else round(row["answer_nll"], 3)
        answers.append([verdict(row), _parts(row["generation"][:_GENERATION], row["value"]), nll])
    return compact_json(
        {
            "task": task,
            "document": first["doc_id"],
            "key": first["key"],
            "value": first["value"],
            "text": passages(first["prompt_text"], first["value"], first["characters_cut"]),
            "cut": first["characters_cut"],
            "answers": answers,
        },
    )


def passages(prompt: str, value: str, cut: int) -> list[tuple[bool, list[str]]]:
    """What of a prompt is shown: around the latest mention of the value that the model has read,
    or, cut off, could have; and its end.

    `cut`: characters at the beginning that were cut off. Each passage: whether it was cut off, and
    its parts, the odd ones the value.
    """

    def passage(start: int, stop: int, least: int) -> str:
        """The text, with dots where something is left out that is not cut off."""
        before, after = "… " * (start > least), " …" * (stop < len(prompt))
        return f"{before}{prompt[start:stop]}{after}"

    end = max(cut, len(prompt) - _END)
    mentions = [match.span() for match in re.finditer(re.escape(value), prompt, re.IGNORECASE)]
    is_read = bool(mentions) and mentions[-1][0] >= cut
    earlier, dots = [], "… " * (end > cut)
    if mentions and not is_read:
        start, stop = mentions[-1]
        stop = min(max(cut, stop), stop + _AROUND)
        earlier.append((True, _parts(passage(max(0, start - _AROUND), stop, 0), value)))
    elif is_read and mentions[-1][0] < end:
        start, stop = mentions[-1]
        start = max(cut, start - _AROUND)
        if stop + _AROUND >= end:  # one passage has both
            end, dots = start, "… " * (start > cut)
        else:
            earlier.append((False, _parts(passage(start, stop + _AROUND, cut), value)))
            dots = ""  # the passage before ends with them
    return [*earlier, (False, _parts(f"{dots}{prompt[end:]}", value))]


def _parts(text: str, value: str) -> list[str]:
    """The text divided at each mention of the value, in any case: the odd parts are the
    mentions."""
    return re.split(f"({re.escape(value)})", text, flags=re.IGNORECASE)
