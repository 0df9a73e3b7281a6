"""Rows of a dataset on the Hugging Face hub, streamed by `datasets`, which is imported when the first row is read."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.records import Meter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from recallkit.text.fields import FieldFinder
    from recallkit.text.readers import OnBad


@dataclass(frozen=True, slots=True)
class HubShard:
    """One split of a dataset on the hub (`repo` is what `datasets.load_dataset` takes, so it may also be a local folder)."""

    name: str
    repo: str
    split: str
    source: str
    finder: FieldFinder
    revision: str | None = None
    piece: tuple[int, int] | None = None
    """(i, n): the i-th of n groups of neighbouring files, from 0; the whole split if None."""
    config: str | None = None
    """One of the dataset's configurations, if it has several."""
    meter: ClassVar[Meter] = Meter()

    def digest(self) -> str:
        """The digest of id, split, revision and configuration: no content is read, so a change of an unnamed revision goes unnoticed."""
        return artifacts.digest_json([self.repo, self.split, self.revision, *([] if self.config is None else [self.config])])

    def size(self) -> None:
        """None: not known."""

    def place(self, record: int) -> str:
        """Dataset and row, from 0."""
        return f"{self.name}, row {record}"

    def pieces(self, most: int) -> Sequence[HubShard]:
        """The split's files, or groups of neighbouring ones, as shards of their own, if it has several."""
        try:
            number = min(self._open().num_shards, most)
        except _failures() as error:
            raise self._unavailable(error, 0) from error
        names = [f"{self.name} (part {place + 1} of {number})" for place in range(number)]
        return [replace(self, name=name, piece=(place, number)) for place, name in enumerate(names)] if number > 1 else [self]

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on, each with its number. Raises UserError if the hub cannot provide them."""
        row = first
        try:
            rows = self._open()
            for row, fields in enumerate(rows.skip(first) if first else rows, first):
                yield row, fields
        except _failures() as error:
            raise self._unavailable(error, row) from error

    def _open(self) -> Any:
        import datasets

        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry, then raises
        rows = datasets.load_dataset(self.repo, self.config, split=self.split, revision=self.revision, streaming=True)
        return rows if self.piece is None else rows.shard(num_shards=self.piece[1], index=self.piece[0])

    def _unavailable(self, error: Exception, row: int) -> UserError:
        remedy = "check its name, split and the network, or download it and give local files"
        if "onfig name is missing" in str(error):
            remedy = f"name one: {self.repo}:CONFIG:{self.split}"
        return UserError(f"cannot be streamed from the hub ({error})", where=self.place(row), remedy=remedy)


def _failures() -> tuple[type[Exception], ...]:
    import datasets

    # RuntimeError: datasets that need a script; ValueError: no such split, or a configuration to choose.
    return (OSError, ValueError, RuntimeError, IndexError, datasets.exceptions.DatasetsError)
