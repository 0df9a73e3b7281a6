"""Parts that take long, saved while they are begun: after half a minute, and when a run is
interrupted.

What is saved are the scores of the batches that are done. Which sequences share a batch depends on
the part and the options alone, so a part that is resumed has the bytes of one that was scored at
once.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

from recallkit.storage import parquet_files
from recallkit.storage.journal import read_part

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy as np

    from recallkit.scoring.scores import BatchedScores

SECONDS_BETWEEN_SAVES = 30.0
"""A kill costs at most so much work, and the batch under way."""


@contextlib.contextmanager
def saving(path: Path, batched: BatchedScores, num_tokens: int) -> Iterator[Saver]:
    """A block in which a part of `num_tokens` predicted tokens is scored: what an earlier run saved
    of it is taken up, and what is done when an exception ends it is saved.

    Raises UserError for a damaged file, which is removed.
    """
    saver = Saver(path, batched, num_tokens)
    try:
        yield saver
    except BaseException:
        with contextlib.suppress(OSError):  # what ended the run says more than a full disk
            saver.save()
        raise


class Saver:
    """The file of a begun part."""

    def __init__(self, path: Path, batched: BatchedScores, num_tokens: int) -> None:
        self._path, self._batched, self._num_tokens, self._time = (
            path,
            batched,
            num_tokens,
            time.monotonic(),
        )
        if path.exists():
            table = read_part(path)
            for name, into in self._columns.items():
                into[:] = table[name].to_numpy()
            batched.num_done = int(parquet_files.read_manifest(path)["batches"])
        self._saved = batched.num_done

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        return {**self._batched.scores.of_model, "context": self._batched.scores.context}

    @property
    def tokens_done(self) -> int:
        """Predicted tokens of the slices that are scored: for a model with its own tokens, as many
        of them as of its own."""
        return round(self._batched.share_done * self._num_tokens)

    def save_if_due(self) -> None:
        """Saves what is done if the last time was long ago."""
        if time.monotonic() - self._time >= SECONDS_BETWEEN_SAVES:
            self.save()
            self._time = time.monotonic()

    def save(self) -> None:
        """Saves what is done, in place of what was saved before."""
        import pyarrow as pa

        if self._batched.num_done == self._saved:
            return
        table = pa.table({name: pa.array(values) for name, values in self._columns.items()})
        facts = {"batches": self._batched.num_done, "tokens": self.tokens_done}
        parquet_files.write_parquet(self._path, [table], table.schema, facts)
        self._saved = self._batched.num_done


def tokens_saved(path: Path) -> int:
    """The predicted tokens in the file of a begun part; 0 if there is none."""
    return int(parquet_files.read_manifest(path)["tokens"]) if path.exists() else 0
