"""Rows that are in no file of ours: of a dataset on the hub, streamed by `datasets`, and texts that
a Python program gives."""

from __future__ import annotations

import hashlib
import logging
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.errors import UsageError, UserError
from recallkit.storage import hashing
from recallkit.text.readers import Shard
from recallkit.text.tables import rows_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.fields import FieldFinder
    from recallkit.text.readers import OnBad

Texts = Iterable[str | Mapping[str, Any]]
"""Texts, or records with a text; iterated once and kept in memory, unless they are a `Dataset`."""
_ROWS_AT_ONCE = 64


@dataclass(eq=False)
class HubShard(Shard):
    """One split of a dataset on the hub (`repo` is what `datasets.load_dataset` takes, so it may
    also be a local folder)."""

    repo: str
    split: str
    revision: str | None = None
    config: str | None = None
    """One of the dataset's configurations, if it has several."""
    unit = "row"

    def digest(self) -> str:
        """The digest of id, split, revision and configuration: no content is read, so a change of
        an unnamed revision goes unnoticed."""
        return hashing.digest_json(
            [self.repo, self.split, self.revision, *([] if self.config is None else [self.config])],
        )

    def pieces(self, most: int) -> Sequence[HubShard]:
        """The split's files, or groups of neighbouring ones, as shards of their own, if it has
        several."""
        try:
            return self._divided(min(self._open().num_shards, most))
        except _failures() as error:
            raise self._unavailable(error, 0) from error

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on, each with its number.

        Raises UserError if the hub cannot provide them.
        """
        row = first
        try:
            rows = self._open()
            for row, fields in enumerate(rows.skip(first) if first else rows, first):
                yield row, fields
        except _failures() as error:
            raise self._unavailable(error, row) from error

    def _open(self) -> Any:
        import datasets

        # it logs each retry, then raises
        logging.getLogger("huggingface_hub").setLevel(
            logging.ERROR,
        )
        rows = datasets.load_dataset(
            self.repo,
            self.config,
            split=self.split,
            revision=self.revision,
            streaming=True,
        )
        if self.piece is None:
            return rows
        index, number = self.piece
        return rows.shard(num_shards=number, index=index)

    def _unavailable(self, error: Exception, row: int) -> UserError:
        remedy = "check its name, split and the network, or download it and give local files"
        if "onfig name is missing" in str(error):
            remedy = f"name one: {self.repo}:CONFIG:{self.split}"
        return UserError(
            f"cannot be streamed from the hub ({error})",
            where=self.place(row),
            remedy=remedy,
        )


def _failures() -> tuple[type[Exception], ...]:
    import datasets

    # RuntimeError: datasets that need a script; ValueError: no such split, or a configuration to
    # choose.
    return (OSError, ValueError, RuntimeError, IndexError, datasets.exceptions.DatasetsError)


class GivenShard(Shard):
    """Texts that a program gives, known by a digest of all their content.

    Records are counted from 0, as Python does.

    Raises UsageError for what is not a collection of texts.
    """

    def __init__(self, texts: Texts, finder: FieldFinder) -> None:
        super().__init__("texts", "texts", finder)
        self._digest: str | None = None
        package = sys.modules.get("datasets")  # who has a `Dataset` has imported it
        is_dataset = package is not None and isinstance(texts, package.Dataset)
        self._dataset: Any = texts if is_dataset else None
        self._records = [] if self._dataset is not None else _listed(texts)

    def digest(self) -> str:
        """The digest of every record, made once: in order, and of a `Dataset` those columns that
        are read."""
        if self._digest is None:
            state = hashlib.blake2b(digest_size=16)
            for record in self._from(0):
                written = _written(record)
                state.update(len(written).to_bytes(8, "little") + written)
            self._digest = state.hexdigest()
        return self._digest

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
        return map(_fields, self._records[first:]) if self._dataset is None else self._rows(first)

    def _rows(self, first: int) -> Iterator[dict[str, Any] | str]:
        """Rows of a `Dataset` from `first` on."""
        columns = self.columns(self._dataset.column_names)
        view = self._dataset.select_columns(columns).with_format("arrow")
        for table in view.skip(first).iter(_ROWS_AT_ONCE):
            for batch in table.to_batches():
                yield from rows_of(batch)


def _listed(texts: Any) -> list[Any]:
    where = "texts"
    if isinstance(texts, Mapping):
        raise UsageError(
            "a mapping, not a list of texts",
            where=where,
            remedy="give one of its values, such as a split",
        )
    if hasattr(texts, "columns"):
        raise UsageError(
            "a table, not a list of texts",
            where=where,
            remedy='give a column, such as frame["text"].to_list()',
        )
    if isinstance(texts, str | bytes) or not isinstance(texts, Iterable):
        raise UsageError(
            f"of type {type(texts).__name__}, not a list of texts",
            where=where,
            remedy="give a list of strings",
        )
    return list(texts)


def _fields(record: Any) -> dict[str, Any] | str:
    """A text or a mapping as a record; else why it is none."""
    fields = {"text": record} if isinstance(record, str) else record
    if not isinstance(fields, Mapping):
        return f"of type {type(record).__name__}, neither a string nor a mapping"
    try:
        for value in fields.values():
            if isinstance(value, str):
                value.encode()
    except UnicodeEncodeError:
        return "half a surrogate pair, which is not text"
    return dict(fields)


def _written(record: Any) -> bytes:
    """A record as bytes, which differ where records do."""
    import orjson

    try:
        return orjson.dumps(
            record,
            default=repr,
            option=orjson.OPT_SORT_KEYS | orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS,
        )
    except orjson.JSONEncodeError:  # such as an integer of more than 64 bits
        return repr(record).encode()
