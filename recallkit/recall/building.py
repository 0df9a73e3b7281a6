"""Rows for recall evaluations, built from documents of which pairs of keys and values are known, as
those of FDA and SWDE were (Based, E.3)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.display.notebook import NotebookResult
from recallkit.errors import UserError
from recallkit.recall.rows import clean_cuts, contains, read_records
from recallkit.storage import artifacts
from recallkit.text.fields import FieldError, FieldFinder, present_names
from recallkit.text.sources import file_shard
from recallkit.text.tokenizers import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from recallkit.text.tokenizers import TextTokenizer

_PAIRS = 'write {"text": "...", "pairs": {"KEY": "VALUE", ...}}'


@dataclass(frozen=True, slots=True, repr=False)
class BuiltRows(NotebookResult):
    """What was written: `rows`, of `documents` in `chunks`; `absent` pairs have a value that is in
    no chunk of their document."""

    path: Path
    documents: int
    chunks: int
    rows: int
    absent: int


def build_rows(
    documents: Path,
    out: Path,
    *,
    tokenizer: str | None = None,
    chunk_tokens: int = config.CHUNK_TOKENS,
    force: bool = False,
) -> BuiltRows:
    """Writes a row for each pair and each chunk of its document that contains the value:
    `{chunk}\\n{key}:`, to be followed by the value.

    `documents` have `text`, `pairs`, key -> value, and perhaps an `id`. Chunks are consecutive, of
    at most `chunk_tokens` tokens; no character is divided. A chunk contains a value as a generation
    does, regardless of case.

    Raises UserError for a file that is there already unless `force`, one that cannot be read,
    records without text or pairs, and where no row results.
    """
    import orjson

    artifacts.check_addable(artifacts.list_of(out), [out.name], "rows")
    if out.exists() and not force:
        raise UserError("is there already", where=out, remedy="give another name, or --force")
    text_tokenizer = load_tokenizer(tokenizer)
    num_documents = num_chunks = num_rows = num_absent = 0
    with artifacts.adding(out, "rows") as partial, partial.open("wb") as file:
        for document in read_records(file_shard(documents, _DocumentFinder()), _document):
            num_documents += 1
            absent = set(document.pairs)
            for number, chunk in enumerate(chunks(document.text, text_tokenizer, chunk_tokens)):
                num_chunks += 1
                for key, value in document.pairs.items():
                    if not contains(chunk, value):
                        continue
                    absent.discard(key)
                    num_rows += 1
                    query = {"text": f"{chunk}\n{key}:", "key": key, "value": value}
                    row = {"doc_id": document.name, "chunk": number, **query}
                    file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            num_absent += len(absent)
        if not num_rows:
            remedy = "check that the values are spelled as in the text"
            raise UserError("no value is in its document", where=documents, remedy=remedy)
    return BuiltRows(out, num_documents, num_chunks, num_rows, num_absent)


def chunks(text: str, tokenizer: TextTokenizer, num_tokens: int) -> Iterator[str]:
    """The text in consecutive parts of at most `num_tokens` of its tokens, at least one; no
    character is divided."""
    import numpy as np

    _, stops = tokenizer.encode_with_stops([text])[0]
    encoded, places = text.encode(), np.concatenate([np.zeros(1, np.int64), stops])
    cuts, begin = clean_cuts(encoded, places), 0
    while begin < len(stops):
        end = cuts[np.searchsorted(cuts, begin + num_tokens, "right") - 1]
        if end <= begin:  # a character of more tokens
            end = cuts[np.searchsorted(cuts, begin, "right")]
        yield encoded[places[begin] : places[end]].decode()
        begin = int(end)


@dataclass(frozen=True, slots=True)
class _Document:
    """A text and the pairs that are known of it."""

    name: str
    text: str
    pairs: dict[str, str]


class _DocumentFinder(FieldFinder):
    """The columns of a table that are read."""

    def columns(self, available: Iterable[str]) -> list[str]:
        """Those of text and id, and `pairs`."""
        names = list(available)
        return [*super().columns(names), *(name for name in names if name == "pairs")]


def _document(fields: Mapping[str, Any], number: int) -> _Document:
    """A record's document. Raises FieldError for one without text or pairs of texts."""
    text, _, name = FieldFinder().find(fields)
    pairs: Any = fields.get("pairs")
    is_document = isinstance(text, str) and isinstance(pairs, dict)
    if not is_document or any(not isinstance(value, str | None) for value in pairs.values()):
        raise FieldError(f"no pairs of texts ({present_names(fields)})", _PAIRS)
    known = {key: value for key, value in pairs.items() if key and value and value.strip()}
    return _Document(name or str(number), str(text), known)
