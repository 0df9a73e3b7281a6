"""Single sequences as they were labelled and scored: one row per token with its text, its labels and its scores by model.

Used by `recallkit tokens` and the report. Only the row groups that contain the sequences are read.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.measure.labelled import LabelledTokens, RowReader, batch_ranges, open_scores, open_tokens
from recallkit.scoring.files import find_scores, score_path, scored_models
from recallkit.storage import artifacts
from recallkit.storage.schemas import arrow_errors_as_user_errors, check_schema
from recallkit.text.tokenizers import load_slices_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl
    import pyarrow as pa

    from recallkit.attribution.comparison import Comparison
    from recallkit.text.tokenizers import TextTokenizer

_LABELS = (
    *("sequence", "position", "document", "source", "prev_token", "token"),
    *("repeated", "distance", "occurrences", "match_length", "train_count", "ar_hit"),
)
_SCORES = ("sequence", "position", "nll", "rank", "argmax", "exact")
_MOST_NAMED = 8
_SLICE_AGAIN = "slice again with --force"


@dataclass(frozen=True, slots=True)
class Excerpts:
    """A slice directory and the score files of some models by name, opened, and checked to be of the same sequences."""

    slices: Path
    scores: Mapping[str, Path]
    labelled: LabelledTokens
    tokenizer: TextTokenizer

    @property
    def num_sequences(self) -> int:
        """The number of sequences, which are numbered from 0."""
        return int(self.labelled.manifest["num_sequences"])

    @property
    def has_counts(self) -> bool:
        """Whether AR hits are distinguished from other repeated tokens."""
        return self.labelled.manifest["counts"] is not None

    def read(self, *sequences: int) -> pl.DataFrame:
        """One row per predicted token of these sequences, in the order of the text: the columns of `tokens.parquet`, and

        text: the token's text, with bytes that are not a whole character written as `\\xNN`.
        earlier: position at which the bigram's latest earlier occurrence ends; null if it is not repeated. 0 is the
        sequence's first token, which is context and has no row.
        nll_i (nats), rank_i, argmax_i, exact_i: as in the score file of model i.
        predicted_i: the text of argmax_i; null for a model with another tokenizer, which has no such token.
        right_i: whether the token is ranked first; null if such a model's tokens do not begin and end where this one does.

        Raises UserError if there is no such sequence, and for damaged or misaligned scores.
        """
        import polars as pl

        for sequence in sequences:
            if not 0 <= sequence < self.num_sequences:
                remedy = f"sequences are numbered 0 to {self.num_sequences - 1:,}"
                raise UserError(f"no sequence {sequence:,}", where=self.slices, remedy=remedy)
        labels = _rows(self.labelled.path, "tokens", _LABELS, sequences, _SLICE_AGAIN)
        frame = labels.with_columns(
            pl.col("source").cast(pl.String),
            pl.Series("text", self.text_of(labels["token"]), pl.String),
            (pl.col("position") - pl.col("distance")).alias("earlier"),
        )
        return frame.with_columns([column for place in range(len(self.scores)) for column in self._scored(place, sequences, labels)])

    def _scored(self, place: int, sequences: Sequence[int], labels: pl.DataFrame) -> list[pl.Series]:
        """The columns of one model. Raises UserError if its rows are not those of the labels."""
        import polars as pl

        path = list(self.scores.values())[place]
        remedy = self._score_again(path)
        scores = _rows(path, "scores", _SCORES, sequences, remedy)
        if not scores.select("sequence", "position").equals(labels.select("sequence", "position")):
            raise UserError("its rows are not those of the labels", where=path, remedy=remedy)
        argmax = scores["argmax"].to_list()
        known = iter(self.text_of(index for index in argmax if index >= 0))
        right = pl.when((pl.col("rank") >= 0) & pl.col("exact")).then(pl.col("rank") == 0)
        return [
            *(scores[name].alias(f"{name}_{place}") for name in _SCORES[2:]),
            pl.Series(f"predicted_{place}", [next(known) if index >= 0 else None for index in argmax], pl.String),
            scores.select(right.alias(f"right_{place}")).to_series(),
        ]

    def text_of(self, ids: Iterable[int]) -> list[str]:
        """The text of each id. Pieces without bytes (WordPiece ...) are shown as written in the vocabulary."""
        pieces, backend = self.tokenizer.token_bytes, self.tokenizer.backend
        if pieces is None:
            return [_word_piece(backend.id_to_token(index) or "") for index in ids]
        return [pieces[index].decode("utf-8", "backslashreplace") if index < len(pieces) else "" for index in ids]

    def sum_hits(self, longest: int | None = None) -> pl.DataFrame:
        """One row per sequence, or per block of `longest` tokens of it, in order: `sequence`, `block` (from 0), `tokens`, `hits`, and
        nll_i, the NLL (nats) of model i summed over them.

        Hits are the AR hits, or repeated tokens if there are no training counts. Reads every row once, in batches.
        """
        import numpy as np
        import polars as pl

        column, longest = "ar_hit" if self.has_counts else "repeated", longest or self.labelled.seq_len
        tokens = RowReader(self.labelled.path, ["sequence", "position", column])
        scores = [RowReader(path, ["nll"]) for path in self.scores.values()]
        blocks = -(-self.labelled.seq_len // longest)  # of each sequence: 3 of 10 tokens with `longest` 4
        sums = np.zeros((2 + len(scores), self.num_sequences * blocks))
        for start, stop in batch_ranges(self.labelled.path):
            rows = tokens.read(start, stop)
            # Position 5 of sequence 2, with 3 blocks of 4 tokens each: 2 * 3 + 1, that is block 1 of it.
            at = rows["sequence"].to_numpy().astype(np.int64) * blocks + (rows["position"].to_numpy() - 1) // longest
            hits = rows[column].to_numpy()
            weights = [np.ones(len(hits)), hits, *(np.where(hits, reader.read(start, stop)["nll"].to_numpy(), 0.0) for reader in scores)]
            for place, weight in enumerate(weights):
                sums[place] += np.bincount(at, weights=weight, minlength=sums.shape[1])
        number, nlls = np.arange(sums.shape[1]), {f"nll_{place}": values for place, values in enumerate(sums[2:])}
        whole = {"tokens": sums[0].astype(np.int64), "hits": sums[1].astype(np.int64)}
        return pl.DataFrame({"sequence": number // blocks, "block": number % blocks, **whole, **nlls}).filter(pl.col("tokens") > 0)

    def most_telling(self) -> int:
        """The sequence in which the first two models differ most in summed NLL of hits; with one model, the largest summed NLL of hits.

        Without models, the sequence with most hits. Among equals the first.
        """
        import polars as pl

        sums = {0: pl.col("hits"), 1: pl.col("nll_0")}.get(len(self.scores), (pl.col("nll_1") - pl.col("nll_0")).abs())
        return int(self.sum_hits().select(sums.arg_max()).item())

    def sequences_of(self, document: int) -> list[int]:
        """The sequences that contain predicted tokens of a document, in order; none if it does not exist."""
        import pyarrow.dataset as ds

        with arrow_errors_as_user_errors(self.labelled.path, _SLICE_AGAIN):
            rows = ds.dataset(self.labelled.path).to_table(columns=["sequence"], filter=ds.field("document") == document)
        return sorted(set(rows["sequence"].to_pylist()))

    def _score_again(self, path: Path) -> str:
        manifest = artifacts.read_manifest(path)
        return _score_again(str(manifest.get("source", manifest["model"])), self.slices)


def score_files(comparison: Comparison, slices: Path) -> dict[str, Path]:
    """The score files of the reference and each model of a comparison, whether or not they are there."""
    named = comparison.manifest["score_files"]
    return {name: score_path(slices, name).with_name(PurePath(named[name]).name) for name in (comparison.reference, *comparison.models)}


def open_excerpts(slices: Path, models: Sequence[str] = (), comparison: Comparison | None = None) -> Excerpts:
    """Opens a slice directory to read single sequences, with the scores of `models`, possibly none; names may be those of `comparison`.

    Raises UserError if labels, tokenizer or scores are missing or of other sequences; it names the models that are scored.
    """
    labelled = open_tokens(slices / "tokens.parquet", needs_counts=False)
    known = {} if comparison is None else score_files(comparison, slices)
    scores = {model: known.get(model) or find_scores(slices, model) for model in models}
    for model, file in scores.items():
        if not file.is_file():
            raise UserError("not scored on these slices", where=model, remedy=f"{_scored_names(slices)}{_score_again(model, slices, '')}")
        open_scores(file, labelled)
    return Excerpts(slices, scores, labelled, load_slices_tokenizer(slices, labelled.manifest["tokenizer"]))


def _scored_names(slices: Path) -> str:
    names = sorted(scored_models(slices).values())
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"scored are {', '.join(names[:_MOST_NAMED])}{more}; " if names else ""


def _score_again(model: str, slices: Path, force: str = " --force") -> str:
    return f"score it with `recallkit score {model} --slices {slices}{force}`"


def _rows(path: Path, layout: str, columns: Sequence[str], sequences: Sequence[int], remedy: str) -> pl.DataFrame:
    """The rows of these sequences. Raises UserError if the file is damaged."""
    import polars as pl
    import pyarrow.dataset as ds

    with arrow_errors_as_user_errors(path, remedy):
        table: pa.Table = ds.dataset(path).to_table(columns=list(columns), filter=ds.field("sequence").isin(list(sequences)))
    check_schema(table.schema, layout, path, remedy=remedy, columns=columns)
    frame = pl.from_arrow(table)
    assert isinstance(frame, pl.DataFrame)
    return frame


def _word_piece(piece: str) -> str:
    """The text of a piece without bytes: words begin with a space, continuations of words do not."""
    return piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
