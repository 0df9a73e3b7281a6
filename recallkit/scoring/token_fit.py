"""Whether numbers are the NLLs, in nats, of the tokens beside which they stand.

Numbers alone do not say what they are numbers of. But a rare token costs more than a frequent one,
wherever it stands, and a model that has read one or two ids knows little more than how frequent
tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from recallkit.errors import UserError
from recallkit.ragged import offsets_of, positions_within

if TYPE_CHECKING:
    from pathlib import Path

    from recallkit.scoring.recording import Rows

_EARLY = 4
"""Positions at which a model has read so few ids that it predicts hardly better than a unigram."""

_MOST_EARLY, _FALLS = 0.9, 0.9
"""Above which share of the unigrams' surprisal early NLLs are not nats, of a model whose other NLLs
are below the second share of that: of the zoo's ten models and the built-in text, early NLLs are
0.70 to 0.77 of it in nats, and 1.02 to 1.11 in bits."""

_NOISE = 0.4
"""Two standard errors of such a share, times the square root of the number of sequences."""

_UNRELATED = 0.1
"""Correlation with the unigrams' surprisal below which NLLs are not those of the tokens: of these
models it is 0.45 to 0.55, and 0.13 at most with the surprisal of neighbouring tokens."""

_LEAST_SPREAD = 1.0
"""Standard deviation, in nats, below which NLLs are those of a guess, which tell nothing."""

_SHIFTED, _LEAST_LENGTH, _LEAST_ROWS = 0.2, 32, 200
"""By how much a sequence's NLLs fit other tokens better than their own to be refused: of these
models none fits its own less than 0.26 better. Shorter sequences and texts are not judged."""

_SHIFTS = {1: "late", -1: "early"}
_SHIFT_REMEDY = "the first NLL of a sequence is that of its second id, predicted from the first"


@dataclass
class TokenFit:
    """What is known so far of the numbers in a file.

    `surprisal` (vocab,): see `unigram_surprisal`. `states_ids`, `is_unit_known`: what is stated is
    not judged.
    """

    path: Path
    surprisal: np.ndarray
    states_ids: bool
    is_unit_known: bool
    nats: float = 0.0
    expected: float = 0.0
    num_tokens: int = 0
    largest: float = 0.0
    squares: float = 0.0
    num_sequences: int = 0
    early: np.ndarray = field(default_factory=lambda: np.zeros(2))
    """Summed NLL and surprisal of the tokens at early positions."""

    def add(self, rows: Rows, tokens: np.ndarray, nll: np.ndarray) -> None:
        """Takes rows. Raises UserError where they fit other tokens better than their own."""
        self._check_sign(rows, nll)
        self._check_filled(rows, nll)
        surprisal = self.surprisal[tokens]
        self.nats += float(nll.sum(dtype=float))
        self.squares += float(np.square(nll, dtype=float).sum())
        self.expected += float(surprisal.sum())
        self.num_tokens += len(nll)
        self.largest = max(self.largest, float(nll.max()))
        self.num_sequences += len(rows.lengths)
        is_early = positions_within(rows.lengths) < _EARLY
        self.early += nll[is_early].sum(dtype=float), surprisal[is_early].sum()
        is_telling = nll.std(dtype=float) >= _LEAST_SPREAD and surprisal.std() > 0
        if not is_telling or len(nll) < _LEAST_ROWS:
            return
        self._check_all(rows, surprisal, nll)
        self._check_sequences(rows, tokens, surprisal, nll)

    def check_unit(self) -> None:
        """Raises UserError where all numbers together are too large for nats."""
        if self.is_unit_known or self.num_tokens < _LEAST_ROWS:
            return
        mean, unigram = self.nats / self.num_tokens, self.expected / self.num_tokens
        spread = np.sqrt(max(0.0, self.squares / self.num_tokens - mean**2))
        early, noise = self.early[0] / self.early[1], _NOISE / np.sqrt(self.num_sequences)
        if self.largest <= 1 and mean < unigram / 4:
            problem, otherwise = "no number is above 1: probabilities, not NLLs", "write -ln p"
        elif mean > unigram and spread >= _LEAST_SPREAD:
            problem, otherwise = _too_large(mean, unigram, ""), _FROM_BITS
        elif early - noise > _MOST_EARLY and mean < _FALLS * early * unigram:
            places = f" over the first {_EARLY} tokens of a sequence"
            problem, otherwise = _too_large(early * unigram, unigram, places), _FROM_BITS
        else:
            return
        statement = f'{{"unit": "nats"}} in {self.path.with_suffix(".json").name}'
        remedy = f"{otherwise}; if these are nats, state so: {statement}"
        raise UserError(problem, where=self.path, remedy=remedy)

    def _check_sign(self, rows: Rows, nll: np.ndarray) -> None:
        negative = np.flatnonzero(nll < -1e-3)
        if len(negative):
            row = int(negative[0])
            problem = f"{place_of(rows, row)} has {nll[row]:.4g}: log-probabilities, not NLLs"
            raise UserError(problem, where=self.path, remedy="multiply by -1")

    def _check_filled(self, rows: Rows, nll: np.ndarray) -> None:
        """Raises UserError for a sequence of zeros, which a program that was stopped leaves."""
        sequence = np.repeat(np.arange(len(rows.lengths)), rows.lengths)
        is_zero = np.bincount(sequence, np.abs(nll), len(rows.lengths)) == 0
        empty = np.flatnonzero(is_zero & (rows.lengths >= _LEAST_LENGTH))
        if len(empty):
            problem = f"the NLLs of sequence {rows.first + int(empty[0]):,} are all 0"
            raise UserError(problem, where=self.path, remedy="write those of every sequence")

    def _check_all(self, rows: Rows, surprisal: np.ndarray, nll: np.ndarray) -> None:
        """Raises UserError where all of these rows stand at other tokens than their own."""
        length = np.array([len(nll)])
        own = float(correlations(nll, surprisal, length)[0])
        others = {}
        for shift, side in _SHIFTS.items():
            left, right, lengths = shifted(nll, surprisal, rows.lengths, shift)
            others[side] = float(correlations(left, right, lengths.sum(keepdims=True))[0])
        side = max(others, key=lambda name: others[name])
        if others[side] > max(own + _SHIFTED / 2, 2 * _UNRELATED):
            problem = f"its NLLs stand one token too {side}"
            raise UserError(problem, where=self.path, remedy=_SHIFT_REMEDY)
        if own < _UNRELATED and not self.states_ids:
            rarity = f"correlation {own:.2f} with the surprisal of their tokens"
            problem = f"its NLLs are not those of these tokens ({rarity})"
            remedy = "write them in the order of tokens.parquet, or state their sequences_digest"
            raise UserError(problem, where=self.path, remedy=remedy)

    def _check_sequences(
        self,
        rows: Rows,
        tokens: np.ndarray,
        surprisal: np.ndarray,
        nll: np.ndarray,
    ) -> None:
        """Raises UserError for a sequence whose NLLs fit its tokens one place on, or another
        sequence's, clearly better than its own."""
        usual = usual_nlls(tokens, nll, surprisal, rows.lengths)
        own = correlations(nll, usual, rows.lengths)
        lengths = np.maximum(rows.lengths, 1)
        margin = np.maximum(_SHIFTED, 3 / np.sqrt(lengths))
        margin[rows.lengths < _LEAST_LENGTH] = np.inf
        for shift, side in _SHIFTS.items():
            other = correlations(*shifted(nll, usual, rows.lengths, shift))
            if (is_shifted := other - own > margin).any():
                number = rows.first + int(is_shifted.argmax())
                problem = f"the NLLs of sequence {number:,} stand one token too {side}"
                raise UserError(problem, where=self.path, remedy=_SHIFT_REMEDY)
        starts = offsets_of(rows.lengths)
        for place in np.flatnonzero((own < _UNRELATED) & (rows.lengths >= _LEAST_LENGTH)):
            length = rows.lengths[place]
            alike = np.flatnonzero(rows.lengths == length)
            grid = np.stack([usual[starts[other] : starts[other] + length] for other in alike])
            repeated = np.tile(nll[starts[place] : starts[place] + length], len(alike))
            others = correlations(repeated, grid.ravel(), np.full(len(alike), length))
            best = int(others.argmax())
            if others[best] - own[place] > 2 * margin[place]:
                first, second = rows.first + place, rows.first + alike[best]
                problem = f"the NLLs of sequence {first:,} are those of sequence {second:,}"
                remedy = "write them in the order of tokens.parquet"
                raise UserError(problem, where=self.path, remedy=remedy)


def place_of(rows: Rows, row: int) -> str:
    """Where a row is: its sequence and position."""
    ends = np.cumsum(rows.lengths)
    sequence = int(np.searchsorted(ends, row, side="right"))
    position = row - int(ends[sequence] - rows.lengths[sequence]) + 1
    return f"sequence {rows.first + sequence:,}, position {position:,}"


_BIT = float(np.log(2))
"""In nats."""

_FROM_BITS = f"multiply bits by {_BIT:.4f}"


def _too_large(mean: float, unigram: float, places: str) -> str:
    return (
        f"a mean of {mean:.2f}{places}, more than the {unigram:.2f} nats of tokens by their "
        f"frequency alone: bits ({mean * _BIT:.2f} nats), or a model that does not know "
        "this text"
    )


def unigram_surprisal(counts: np.ndarray) -> np.ndarray:
    """-ln p of each token (vocab,) by its other occurrences in a text, in nats.

    Witten-Bell smoothing, as `models.control` has it, without the occurrence that is predicted: of
    a short text, frequencies with it would promise too much.
    """
    distinct = np.count_nonzero(counts)
    smoothed = np.maximum(counts - 1, 0) + distinct / len(counts)
    surprisal: np.ndarray = -np.log(smoothed / max(counts.sum() - 1 + distinct, 1))
    return surprisal


def usual_nlls(
    tokens: np.ndarray,
    nll: np.ndarray,
    surprisal: np.ndarray,
    lengths: np.ndarray,
) -> np.ndarray:
    """What each token's NLL is in other sequences (rows,): the mean of its occurrences there, drawn
    towards a line in its surprisal, which a token that occurs in one sequence alone is on."""
    slope, constant = np.polyfit(surprisal, nll, 1)
    line = slope * surprisal + constant
    rest = nll - line
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    totals, counts = np.bincount(tokens, rest), np.bincount(tokens)
    _, own = np.unique(sequence * len(counts) + tokens, return_inverse=True)
    own_totals, own_counts = np.bincount(own, rest)[own], np.bincount(own)[own]
    prior = 3.0  # occurrences that the line is worth
    usual: np.ndarray = line + (totals[tokens] - own_totals) / (counts[tokens] - own_counts + prior)
    return usual


def shifted(
    nll: np.ndarray,
    of_tokens: np.ndarray,
    lengths: np.ndarray,
    shift: int,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each NLL beside the token `shift` places before it in its sequence, and what is left of the
    lengths. Example: shift 1 pairs the NLLs 2 3 | 5 of 1 2 3 | 4 5 with the tokens 1 2 | 4."""
    later = np.flatnonzero(positions_within(lengths) > 0)
    before = later - 1
    pairs = (nll[later], of_tokens[before]) if shift > 0 else (nll[before], of_tokens[later])
    return *pairs, np.maximum(lengths - 1, 0)


def correlations(left: np.ndarray, right: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Pearson's correlation within each sequence; 0 of one without variance."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.maximum(lengths, 1)

    def total(values: np.ndarray) -> np.ndarray:
        totals: np.ndarray = np.bincount(sequence, values, len(lengths))
        return totals

    def around_mean(values: np.ndarray) -> np.ndarray:
        centred: np.ndarray = values - (total(values) / counts)[sequence]
        return centred

    left, right = around_mean(left.astype(float)), around_mean(right)
    scale = np.sqrt(total(left**2) * total(right**2))
    quotients: np.ndarray = total(left * right) / np.maximum(scale, 1e-12)
    return quotients
