"""Texts that a Python program gives: strings, mappings with the fields of a record, or a `Dataset` of the package `datasets`."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from recallkit.errors import UsageError, UserError
from recallkit.text.fields import FieldError
from recallkit.text.records import Meter
from recallkit.text.tables import rows_at_once, rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.fields import FieldFinder
    from recallkit.text.readers import OnBad

Texts = Iterable[str | Mapping[str, Any]]
"""Texts, or records with a text; iterated once and kept in memory, unless they are a `Dataset`."""


class GivenShard:
    """Texts as a shard, known by a digest of all their content. Records are counted from 0, as Python does.

    Raises UsageError for what is no collection of texts.
    """

    name = source = "texts"
    meter = Meter()

    def __init__(self, texts: Texts, finder: FieldFinder) -> None:
        self.finder = finder
        self._digest: str | None = None
        self._dataset = texts if _is_dataset(texts) else None
        self._records = [] if self._dataset is not None else _listed(texts)

    def digest(self) -> str:
        """The digest of every record, made once: in order, and of a `Dataset` those columns that are read."""
        if self._digest is None:
            state = hashlib.blake2b(digest_size=16)
            for record in self._from(0):
                written = _written(record)
                state.update(len(written).to_bytes(8, "little") + written)
            self._digest = state.hexdigest()
        return self._digest

    def size(self) -> None:
        """None: not measured."""

    def pieces(self, most: int) -> Sequence[GivenShard]:
        """This shard alone."""
        return [self]

    def place(self, record: int) -> str:
        """The record, as Python names it."""
        return f"{self.name}[{record}]"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Records from number `first` on; see `Shard.records`."""
        number = first - 1
        for number, record in enumerate(self._from(first), first):
            if isinstance(record, str):
                on_bad(number, record, "give strings, or mappings with a text")
            else:
                yield number, record
        if number < 0:
            raise UserError("no text was given", where=self.name, remedy="give at least one")

    def _from(self, first: int) -> Iterator[dict[str, Any] | str]:
        """Records from number `first` on; in place of one that cannot be read, why."""
        if self._dataset is not None:
            return _rows(self._dataset, self.finder, first)
        return map(_fields, self._records[first:])


def _fields(record: Any) -> dict[str, Any] | str:
    fields = {"text": record} if isinstance(record, str) else record
    if not isinstance(fields, Mapping):
        return f"of type {type(record).__name__}, neither a string nor a mapping"
    try:
        for value in fields.values():
            if isinstance(value, str):
                value.encode()
    except UnicodeEncodeError:
        return "half a surrogate pair, which is no text"
    return dict(fields)


def _is_dataset(texts: Any) -> bool:
    """Whether it is a `Dataset`; who has one has imported the package."""
    package = sys.modules.get("datasets")
    return package is not None and isinstance(texts, package.Dataset)


def _listed(texts: Any) -> list[Any]:
    where = "texts"
    if isinstance(texts, Mapping):
        raise UsageError("a mapping, not a list of texts", where=where, remedy="give one of its values, such as a split")
    if hasattr(texts, "columns"):
        raise UsageError("a table, not a list of texts", where=where, remedy='give a column, such as frame["text"].to_list()')
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(f"of type {type(texts).__name__}, not a list of texts", where=where, remedy="give a list of strings")
    return list(texts)


def _rows(dataset: Any, finder: FieldFinder, first: int) -> Iterator[dict[str, Any] | str]:
    """Rows of a `Dataset` from `first` on, a few megabytes at a time; a string says why a row cannot be read."""
    try:
        columns = finder.columns(dataset.column_names)
    except FieldError as error:
        raise UserError(str(error), where=GivenShard.name, remedy=error.remedy) from error
    view = dataset.select_columns(columns).with_format("arrow")
    size = rows_at_once(len(dataset), dataset.data.nbytes)
    for start in range(first, len(dataset), size):
        for batch in view[start : start + size].to_batches():
            yield from rows_of(batch)


def _written(record: Any) -> bytes:
    """A record as bytes, which differ where records do."""
    import orjson

    try:
        return orjson.dumps(record, default=repr, option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS)
    except orjson.JSONEncodeError:  # such as an integer of more than 64 bits
        return repr(record).encode()
