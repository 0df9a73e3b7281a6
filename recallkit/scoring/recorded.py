"""Recorded NLLs beside the labels of their tokens: checked, and written as a score file.

Numbers alone do not say what they are numbers of. What a file states is compared with the slices;
what it does not state is checked by what NLLs of these tokens must look like (`TokenFit`): a rare
token costs more than a frequent one, wherever it stands, and a model that has read one or two ids
knows little more than how frequent tokens are.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import console
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models.recorded import UNITS, Recording, Rows, facts_of, is_changed_text
from recallkit.models.spec import LIVE
from recallkit.ragged import offsets_of, positions_within
from recallkit.scoring.identity import score_facts, score_path, sequences_of
from recallkit.scoring.scores import PARQUET_OPTIONS, check_finite
from recallkit.storage import artifacts, schemas
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import pyarrow as pa

    from recallkit.scoring.run import ScoringPlan
    from recallkit.text.special_tokens import Prefix

_EARLY = 4
"""Positions at which a model has read so few ids that it predicts hardly better than a unigram."""

_LEAST_EARLY, _MOST_EARLY, _FALLS = 0.45, 0.9, 0.9
"""Between which shares of the unigrams' surprisal early NLLs are nats, of a model whose NLLs fall
behind them to less than the third: of the zoo's ten models and the built-in text, early NLLs are
0.71 to 0.78 of it in nats, 1.02 to 1.12 in bits, and 0.31 to 0.34 as decimal logarithms."""

_NOISE = 0.4
"""Two standard errors of such a share, times the square root of the number of sequences."""

_UNRELATED = 0.1
"""Correlation with the unigrams' surprisal below which NLLs are not those of the tokens: of these
models it is 0.42 to 0.91, and 0.13 at most with the surprisal of neighbouring tokens."""

_LEAST_SPREAD = 1.0
"""Standard deviation, in nats, below which NLLs are those of a guess, which tell nothing."""

_SHIFTED, _LEAST_LENGTH, _LEAST_ROWS = 0.2, 32, 200
"""By how much a sequence's NLLs fit other tokens better than their own to be refused: of these
models none fits its own less than 0.26 better. Shorter sequences and texts are not judged."""


def record(plan: ScoringPlan, facts: Mapping[str, Any], timings: Timings) -> dict[str, Any]:
    """Writes the score file of recorded NLLs; returns its manifest.

    Raises UserError where they are not the NLLs, in nats, of the tokens of the slices.
    """
    path, labels = Path(plan.request.spec), artifacts.read_manifest(plan.slices / "tokens.parquet")
    stated = facts_of(path)
    if stated.get("sequences_digest", labels["sequences_digest"]) != labels["sequences_digest"]:
        problem = f"NLLs of other ids: its sequences_digest is not that of {plan.slices}"
        raise UserError(problem, where=path, remedy="record them for the ids of these slices")
    recording = Recording(path, *(labels[name] for name in ("num_rows", "num_sequences", "seq_len")))
    fit = TokenFit.of(plan.slices, path, stated)

    def read(rows: Rows, tokens: pa.Table) -> dict[str, np.ndarray]:
        columns = recording.read(rows)
        _check_order(columns, tokens, path, rows)
        nll = columns["nll"].astype(np.float32)
        check_finite(plan.request.name, nll, rows.first, offsets_of(rows.lengths + 1))
        fit.add(rows, tokens["token"].to_numpy(), nll)
        if "rank" in columns:
            _check_ranks(columns["rank"], nll, path, rows)
        return {**columns, "nll": nll}

    manifest = write_scores(plan.result, plan.slices, read, facts, timings, fit.check_unit)
    _say_what_is_taken(plan.request.name, recording, fit, stated)
    return manifest


def record_array(slices: Path, name: str, nll: np.ndarray, prefix: Prefix) -> Path:
    """Writes NLLs (num_rows,) in nats as the scores of a model of this name; returns the file.

    They are of the tokens in their order, which the caller knows; scores of this name are replaced.
    """
    sequences = sequences_of(slices)
    options = {
        "model_digest": artifacts.digest_arrays(nll),
        "sequences_digest": sequences["sequences_digest"],
    }
    result = Result(score_path(slices, name), "scores", options, force=True)
    facts = score_facts(result, name, f"{LIVE}{name}", prefix, sequences["num_rows"])
    write_scores(result, slices, lambda rows, _: {"nll": nll[rows.start : rows.stop]}, facts, Timings())
    return result.path


def write_scores(
    result: Result,
    slices: Path,
    read: Callable[[Rows, pa.Table], Mapping[str, np.ndarray]],
    facts: Mapping[str, Any],
    timings: Timings,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Writes a score file of the NLLs that `read` gives for rows with their labels, `nll` float32
    and, where they are known, `argmax` and `rank`; returns its manifest.

    `check` is called behind the last row; what it raises leaves the result as it was.
    """
    schema, path = schemas.arrow_schema("scores"), slices / "tokens.parquet"
    manifest: dict[str, Any] = {}
    with result.writing(manifest, timings) as new, timings.stage("recording") as stage:
        with progress("reading NLLs", total=facts["num_rows"]) as show:

            def tables() -> Iterator[pa.Table]:
                for rows, tokens in labelled_rows(path):
                    yield _score_table(tokens, read(rows, tokens), schema)
                    show(rows.stop)
                check()

            file = new / result.path.name
            manifest |= artifacts.write_parquet(file, tables(), schema, facts, **PARQUET_OPTIONS)
        stage.amounts["tokens"] = manifest["num_rows"]
    return manifest


def labelled_rows(tokens: Path) -> Iterator[tuple[Rows, pa.Table]]:
    """The row groups of `tokens.parquet`, each of whole sequences: `sequence`, `position` and
    `token`."""
    import pyarrow.parquet as pq

    start, file = 0, pq.ParquetFile(tokens, pre_buffer=False)
    for group in range(file.metadata.num_row_groups):
        table = file.read_row_group(group, columns=["sequence", "position", "token"])
        sequence = table["sequence"].to_numpy()
        first = int(sequence[0])
        rows = Rows(start, first, np.bincount(sequence - first))
        yield rows, table
        start = rows.stop


def _score_table(tokens: pa.Table, columns: Mapping[str, np.ndarray], schema: pa.Schema) -> pa.Table:
    """Rows of a score file; without an argmax or a rank these are -1, and the context is that of
    whole sequences."""
    import pyarrow as pa

    unknown = np.full(tokens.num_rows, -1, np.int32)
    arrays = {
        "sequence": tokens["sequence"],
        "position": tokens["position"],
        "nll": columns["nll"],
        "argmax": np.asarray(columns.get("argmax", unknown), np.int32),
        "rank": np.asarray(columns.get("rank", unknown), np.int32),
        "context": tokens["position"],
        "exact": np.ones(tokens.num_rows, bool),
    }
    return pa.table(arrays, schema=schema)


def _check_order(columns: Mapping[str, np.ndarray], tokens: pa.Table, path: Path, rows: Rows) -> None:
    """Raises UserError where a table's rows are not those of `tokens.parquet`, in its order."""
    for name in ("sequence", "position"):
        if name not in columns:
            continue
        expected = tokens[name].to_numpy()
        other = np.flatnonzero(columns[name] != expected)
        if len(other):
            row = int(other[0])
            problem = f"row {rows.start + row:,} has {name} {columns[name][row]}, not {expected[row]}"
            remedy = "write the rows in the order of tokens.parquet: by sequence, then position"
            raise UserError(problem, where=path, remedy=remedy)


def _check_ranks(rank: np.ndarray, nll: np.ndarray, path: Path, rows: Rows) -> None:
    """Raises UserError where a token of rank r has a probability above 1 / (r + 1)."""
    # A little less, because NLLs are rounded.
    impossible = np.flatnonzero(nll < np.log1p(np.maximum(rank, 0)) * 0.99 - 0.01)
    if len(impossible):
        row = int(impossible[0])
        problem = f"{_place(rows, row)} has rank {rank[row]} and an NLL of {nll[row]:.3g} nats"
        remedy = "write natural logarithms, and how many entries have a larger logit as the rank"
        raise UserError(f"{problem}, which cannot be", where=path, remedy=remedy)


def _place(rows: Rows, row: int) -> str:
    """Where a row is: its sequence and position."""
    ends = np.cumsum(rows.lengths)
    sequence = int(np.searchsorted(ends, row, side="right"))
    position = row - int(ends[sequence] - rows.lengths[sequence]) + 1
    return f"sequence {rows.first + sequence:,}, position {position:,}"


def _say_what_is_taken(
    name: str,
    recording: Recording,
    fit: TokenFit,
    stated: Mapping[str, Any],
) -> None:
    """Notes on what the file does not state, and on float16."""
    facts = {"unit": "its unit", "sequences_digest": "a digest of its ids"}
    unstated = [words for fact, words in facts.items() if fact not in stated]
    if unstated:
        mean = f"{fit.nats / fit.num_tokens:.2f} nats per token"
        lacking = " or ".join(unstated)
        console.note(
            f"{name}: {recording.path} does not state {lacking}; it fits these tokens, and is read as {mean}"
        )
    if recording.dtype == np.float16:
        rounding = float(np.spacing(np.float16(fit.largest))) / 2
        console.note(f"{name}: float16 has rounded each NLL, by up to {rounding:.2g} nats")


# ------------------------------------------------------------------------ whether they are NLLs


@dataclass
class TokenFit:
    """Whether numbers are the NLLs, in nats, of the tokens beside which they stand.

    `surprisal` (vocab,): -ln of each token's frequency in the text, without itself (nats).
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

    @classmethod
    def of(cls, slices: Path, path: Path, stated: Mapping[str, Any]) -> TokenFit:
        """The check of a file of recorded NLLs of a slice directory.

        Changed text has few beginnings, each many times, which tell little of the unit: it is that
        of the text's own NLLs, which are read first.
        """
        labels = artifacts.read_manifest(slices / "tokens.parquet")
        counts = np.zeros(labels["tokenizer"]["vocab_size"])
        for _, tokens in labelled_rows(slices / "tokens.parquet"):
            counts += np.bincount(tokens["token"].to_numpy(), minlength=len(counts))
        surprisal = unigram_surprisal(counts)
        is_unit_known = "unit" in stated or is_changed_text(slices)
        return cls(path, surprisal, "sequences_digest" in stated, is_unit_known)

    def add(self, rows: Rows, tokens: np.ndarray, nll: np.ndarray) -> None:
        """Takes rows. Raises UserError where they fit other tokens better than their own."""
        self._check_sign(rows, nll)
        surprisal = self.surprisal[tokens]
        self.nats += float(nll.sum(dtype=float))
        self.squares += float(np.square(nll, dtype=float).sum())
        self.expected += float(surprisal.sum())
        self.num_tokens += len(nll)
        self.largest = max(self.largest, float(nll.max()))
        self.num_sequences += len(rows.lengths)
        is_early = positions_within(rows.lengths) < _EARLY
        self.early += nll[is_early].sum(dtype=float), surprisal[is_early].sum()
        if nll.std() < _LEAST_SPREAD or len(nll) < _LEAST_ROWS:
            return
        self._check_all(rows, surprisal, nll)
        self._check_sequences(rows, tokens, surprisal, nll)

    def check_unit(self) -> None:
        """Raises UserError where all numbers together are too large for nats, or too small."""
        if self.is_unit_known or self.num_tokens < _LEAST_ROWS:
            return
        mean, unigram = self.nats / self.num_tokens, self.expected / self.num_tokens
        spread = np.sqrt(max(0.0, self.squares / self.num_tokens - mean**2))
        early, noise = self.early[0] / self.early[1], _NOISE / np.sqrt(self.num_sequences)
        if self.largest <= 1 and mean < unigram / 4:
            problem = "no number is above 1: probabilities, not NLLs"
            remedy = "write -ln p"
        elif mean > unigram and spread >= _LEAST_SPREAD:
            problem = self._too_large(mean, unigram, "")
            remedy = f"multiply bits by {UNITS['bits']:.4f}"
        elif early - noise > _MOST_EARLY and mean < _FALLS * early * unigram:
            places = f" over the first {_EARLY} tokens of a sequence"
            problem = self._too_large(early * unigram, unigram, places)
            remedy = f"multiply bits by {UNITS['bits']:.4f}"
        elif early + noise < _LEAST_EARLY and spread >= _LEAST_SPREAD / 2:
            problem = (
                f"a mean of {early * unigram:.2f} over the first {_EARLY} tokens of a sequence is "
                f"too little for nats: tokens by their frequency alone have {unigram:.2f}"
            )
            remedy = f"multiply decimal logarithms by {UNITS['log10']:.4f}"
        else:
            return
        statement = f'{{"unit": "nats"}} in {self.path.with_suffix(".json").name}'
        remedy += f"; if these are nats, state so: {statement}"
        raise UserError(problem, where=self.path, remedy=remedy)

    def _too_large(self, mean: float, unigram: float, places: str) -> str:
        return (
            f"a mean of {mean:.2f}{places} is too much for nats: tokens by their frequency alone "
            f"have {unigram:.2f}; as bits it would be {mean * UNITS['bits']:.2f} nats"
        )

    def _check_sign(self, rows: Rows, nll: np.ndarray) -> None:
        negative = np.flatnonzero(nll < -1e-3)
        if len(negative):
            row = int(negative[0])
            problem = f"{_place(rows, row)} has {nll[row]:.4g}: log-probabilities, not NLLs"
            raise UserError(problem, where=self.path, remedy="multiply by -1")

    def _check_all(self, rows: Rows, surprisal: np.ndarray, nll: np.ndarray) -> None:
        """Raises UserError where all of these rows stand at other tokens than their own."""
        whole = np.array([len(nll)])
        own = float(_correlations(nll, surprisal, whole)[0])
        others = {}
        for shift, side in _SHIFTS.items():
            *pairs, lengths = _shifted(nll, surprisal, rows.lengths, shift)
            others[side] = float(_correlations(*pairs, lengths.sum(keepdims=True))[0])
        side = max(others, key=lambda name: others[name])
        if others[side] > max(own + _SHIFTED / 2, 2 * _UNRELATED):
            problem = f"its NLLs stand one token too {side}"
            raise UserError(problem, where=self.path, remedy=_SHIFT_REMEDY)
        if own < _UNRELATED and not self.states_ids:
            problem = f"its NLLs are not those of these tokens (correlation {own:.2f} with how rare they are)"
            remedy = "write them in the order of tokens.parquet, of the same ids"
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
        own = _correlations(nll, usual, rows.lengths)
        lengths = np.maximum(rows.lengths, 1)
        margin = np.where(rows.lengths < _LEAST_LENGTH, np.inf, np.maximum(_SHIFTED, 3 / np.sqrt(lengths)))
        for shift, side in _SHIFTS.items():
            other = _correlations(*_shifted(nll, usual, rows.lengths, shift))
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
            others = _correlations(repeated, grid.ravel(), np.full(len(alike), length))
            best = int(others.argmax())
            if others[best] - own[place] > 2 * margin[place]:
                first, second = rows.first + place, rows.first + alike[best]
                problem = f"the NLLs of sequence {first:,} are those of sequence {second:,}"
                remedy = "write them in the order of tokens.parquet"
                raise UserError(problem, where=self.path, remedy=remedy)


_SHIFTS = {1: "late", -1: "early"}
_SHIFT_REMEDY = "the first NLL of a sequence is that of its second id, predicted from the first"


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


def _shifted(
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


def _correlations(left: np.ndarray, right: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Pearson's correlation within each sequence; 0 of one without variance."""
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.maximum(lengths, 1)

    def centred(values: np.ndarray) -> np.ndarray:
        means = np.bincount(sequence, values, len(lengths)) / counts
        return values - means[sequence]

    left, right = centred(left.astype(float)), centred(right)
    products = [np.bincount(sequence, values, len(lengths)) for values in (left * right, left**2, right**2)]
    scale = np.sqrt(products[1] * products[2])
    correlations: np.ndarray = np.divide(products[0], scale, out=np.zeros(len(lengths)), where=scale > 1e-12)
    return correlations
