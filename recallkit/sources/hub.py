"""The seam to Hugging Face's hub: rows of a data set, streamed by `datasets`, which is imported when a row is asked for."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit import artifacts
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recallkit.sources.fields import FieldFinder
    from recallkit.sources.readers import OnBad


@dataclass(frozen=True, slots=True)
class HubShard:
    """One split of a data set of the hub (`repo` is what `datasets.load_dataset` takes: a local folder will do)."""

    name: str
    repo: str
    split: str
    source: str
    finder: FieldFinder
    revision: str | None = None

    def digest(self) -> str:
        """The digest of id, split and revision: content is not looked at, and an unnamed revision can move on."""
        return artifacts.digest_json([self.repo, self.split, self.revision])

    def size(self) -> None:
        """Not known."""

    def place(self, record: int) -> str:
        """Data set and row, from 0."""
        return f"{self.name}, row {record}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Rows from `first` on, each with its number. Raises UserError where the hub cannot give them."""
        import datasets

        # RuntimeError: data sets that would need a script; ValueError: no such split, or a configuration to choose.
        failures = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
        row = first
        logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry, then raises
        try:
            rows = datasets.load_dataset(self.repo, split=self.split, revision=self.revision, streaming=True)
            for row, fields in enumerate(rows.skip(first) if first else rows, first):
                yield row, fields
        except failures as error:
            problem = f"cannot be streamed from the hub ({error})"
            remedy = "check its name, split and the network, or download it and give local files"
            raise UserError(problem, where=self.place(row), remedy=remedy) from error
