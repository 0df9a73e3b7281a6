"""How a model reads sequences: at once, in windows, with its state carried on, or from last ids
alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CARRIED_IDS = 2048
"""Ids that a recurrent model reads at once with `--carry-state` if `--context` is not given."""


@dataclass(frozen=True, slots=True)
class ContextWindow:
    """How a model reads a sequence that is longer than its context.

    `context`: ids that it reads at once at most, None for the model's own limit. `stride`:
    predictions taken from each further window of `context` ids. `carry`: a recurrent model reads
    `context` ids at a time and keeps its state. `in_steps`: every window begins `stride` ids after
    the one before, also the last, which may be shorter: what a prediction sees depends on its
    position alone.
    """

    context: int | None = None
    stride: int | None = None
    carry: bool = False
    in_steps: bool = False

    @property
    def is_usual(self) -> bool:
        """Whether nothing is said about it."""
        return self == ContextWindow()

    @property
    def carried_ids(self) -> int:
        """Ids that a model reads at once which carries its state."""
        return self.context or CARRIED_IDS


@dataclass(frozen=True, slots=True)
class LastIds:
    """Every prediction is made from its last ids alone: from `ids` to `ids + stride - 1` of them,
    fewer at a sequence's beginning.

    The prediction at position p sees p ids where p < ids + stride, else ids + (p - ids) % stride.
    With a stride of 1 it is always the last `ids`, which costs `ids` passes over the text; in
    general (ids + stride - 1) / stride.
    """

    ids: int
    stride: int

    @property
    def most(self) -> int:
        """The most ids that a prediction sees."""
        return self.ids + self.stride - 1

    @property
    def window(self) -> ContextWindow:
        """How a model reads a sequence so."""
        return ContextWindow(self.most, self.stride, in_steps=True)

    def __str__(self) -> str:
        return f"last-{self.ids}-stride-{self.stride}"


def choose_last(ids: Sequence[int], stride: int | None = None) -> list[LastIds]:
    """Each number of last ids once, in ascending order; with a `stride` of a quarter of them if
    none is given: about five passes each."""
    return [LastIds(number, stride or max(1, number // 4)) for number in sorted(set(ids))]


def check_context(
    name: str,
    max_length: int | None,
    window: ContextWindow,
    longest: int,
    prefix: tuple[int, ...] = (),
) -> int | None:
    """Ids that a model reads at once where its longest sequence, of `longest` predictions, is read
    in windows; else None.

    `max_length`: its longest context behind its `prefix`, None without a limit. Raises UserError if
    more ids are asked for than it has, and for sequences that it cannot read, in windows or at
    once.
    """
    of_text = " of text" if prefix else ""
    if window.context is not None and max_length is not None and window.context > max_length:
        problem = f"its context is {max_length:,} ids{of_text}"
        raise UserError(problem, where=name, remedy=f"give --context {max_length} or less")
    context = max_length if window.context is None else window.context
    if context is None or longest <= context:
        return None
    if window.stride is None:
        in_windows = f"read it in windows with --stride {max(1, context // 2)}"
        remedy = f"{in_windows}, or slice with --seq-len {context} or less"
        problem = f"its context is {context:,} ids{of_text}, but a sequence has {longest:,}"
        raise UserError(problem, where=name, remedy=remedy)
    if window.stride > context:
        problem = f"windows of {context:,} ids at a stride of {window.stride:,} leave ids out"
        raise UserError(problem, where=name, remedy=f"give --stride {context} or less")
    return context


def longest_sequence(slices: Path) -> int:
    """The predictions of the longest sequence of a slice directory, from the footer of its labels;
    0 if that does not tell."""
    import pyarrow.parquet as pq

    metadata = pq.read_metadata(slices / "tokens.parquet")
    column = metadata.schema.to_arrow_schema().get_field_index("position")
    longest = 0
    for number in range(metadata.num_row_groups):
        statistics = metadata.row_group(number).column(column).statistics
        if statistics is not None and statistics.has_min_max:
            longest = max(longest, int(statistics.max))
    return longest
