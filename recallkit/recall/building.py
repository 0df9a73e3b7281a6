"""Builds rows of a recall evaluation from documents with known pairs, as Based's authors built those of SWDE and FDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UserError
from recallkit.recall.prompts import clean_cuts, contains
from recallkit.storage import artifacts
from recallkit.text.fields import FieldError, FieldFinder, present_names
from recallkit.text.formats import Reading, file_shard
from recallkit.text.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from recallkit.text.tokenizers import TextTokenizer

_PAIRS = 'write {"text": "...", "pairs": {"KEY": "VALUE", ...}}'


@dataclass(frozen=True, slots=True)
class BuiltRows:
    """What was written: `rows`, of `documents` in `chunks`; `absent` pairs have a value that is in no chunk of their document."""

    path: Path
    documents: int
    chunks: int
    rows: int
    absent: int


_HEAD = b'{"doc_id":'
"""How a file of rows begins."""


def build_rows(
    documents: Path, out: Path, *, tokenizer: str | None = None, chunk_tokens: int = config.CHUNK_TOKENS, force: bool = False
) -> BuiltRows:
    """Writes a row for each pair and each chunk of its document that contains the value: `{chunk}\\n{key}:`, to be followed by the value.

    `documents` (any format of text) have `text`, `pairs`, key -> value, and perhaps an `id`. Chunks are consecutive, of at most
    `chunk_tokens` tokens; no character is divided. A chunk contains a value as a generation does, regardless of case.

    Raises UserError for a file that is there already unless `force`, one that cannot be read, records without text or pairs, and where
    no row results.
    """
    import orjson

    artifacts.check_replaceable(out, _HEAD)
    if out.exists() and not force:
        raise UserError("is there already", where=out, remedy="give another name, or --force")
    opened, counted = load_tokenizer(tokenizer), {"documents": 0, "chunks": 0, "rows": 0, "absent": 0}
    with artifacts.replacing(out) as partial, partial.open("wb") as file:
        for name, text, pairs in _documents(documents):
            counted["documents"] += 1
            found: set[str] = set()
            for number, chunk in enumerate(chunks(text, opened, chunk_tokens)):
                counted["chunks"] += 1
                for key, value in pairs.items():
                    if contains(chunk, value):
                        found.add(key)
                        row = {"doc_id": name, "chunk": number, "text": f"{chunk}\n{key}:", "key": key, "value": value}
                        file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
                        counted["rows"] += 1
            counted["absent"] += len(pairs) - len(found)
        if not counted["rows"]:
            raise UserError(
                "no value is in its document", where=documents, remedy="check that pairs have the values as the text writes them"
            )
    return BuiltRows(out, **counted)


def chunks(text: str, tokenizer: TextTokenizer, num_tokens: int) -> Iterator[str]:
    """The text in consecutive parts of at most `num_tokens` of its tokens, at least one; no character is divided."""
    import numpy as np

    _, stops = tokenizer.encode_with_stops([text])[0]
    encoded, places = text.encode(), np.concatenate([np.zeros(1, np.int64), stops])
    cuts, begin = clean_cuts(encoded, places), 0
    while begin < len(stops):
        end = cuts[np.searchsorted(cuts, begin + num_tokens, "right") - 1]
        end = int(end if end > begin else cuts[np.searchsorted(cuts, begin, "right")])
        yield encoded[places[begin] : places[end]].decode()
        begin = end


def _documents(path: Path) -> Iterator[tuple[str, str, dict[str, str]]]:
    """Id, text and pairs of each record; values that are blank, which anything contains, are left out."""
    shard = file_shard(str(path), path, Reading(_Finder()), None)

    def on_bad(record: int, problem: str, remedy: str) -> None:
        raise UserError(problem, where=shard.place(record), remedy=remedy)

    for number, fields in shard.records(0, on_bad):
        try:
            yield _document(fields, number)
        except FieldError as error:
            on_bad(number, str(error), error.remedy)


def _document(fields: Mapping[str, Any], number: int) -> tuple[str, str, dict[str, str]]:
    text, _, name = FieldFinder().find(fields)
    pairs = fields.get("pairs")
    if (
        not isinstance(text, str)
        or not isinstance(pairs, dict)
        or not all(value is None or isinstance(value, str) for value in pairs.values())
    ):
        raise FieldError(f"no pairs of texts ({present_names(fields)})", _PAIRS)
    return name or str(number), text, {key: value for key, value in pairs.items() if key and value and value.strip()}


class _Finder(FieldFinder):
    """The columns of a table that are read."""

    def columns(self, available: Any) -> list[str]:
        """Those of text and id, and `pairs`."""
        return [*super().columns(available), *(name for name in available if name == "pairs")]
