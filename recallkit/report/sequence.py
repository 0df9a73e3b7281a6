"""Single sequences as they were labelled and scored: one row per token with its text, its labels
and its scores by model.

Used by `recallkit tokens` and the report. Only the row groups that contain the sequences are read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.measure.labelled import (
    MOST_AT_ONCE,
    LabelledTokens,
    Scores,
    batches,
    open_scores,
    open_tokens,
)
from recallkit.scoring.identity import find_scores, score_path, scored_models
from recallkit.text.tokenizers import load_slices_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.attribution.comparison import Comparison
    from recallkit.text.tokenizers import TextTokenizer

_LABELS = (
    *("sequence", "position", "document", "source", "prev_token", "token"),
    *("repeated", "distance", "occurrences", "match_length", "train_count", "ar_hit"),
)
_SCORES = ("nll", "rank", "argmax", "exact")
_MOST_NAMED = 8


@dataclass(frozen=True, slots=True)
class Excerpts:
    """A slice directory and the scores of some models by name, opened, and checked to be of the
    same sequences."""

    slices: Path
    scores: Mapping[str, Scores]
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

    def read(self, *sequences: int, places: pl.DataFrame | None = None) -> pl.DataFrame:
        """One row per predicted token of these sequences, in the order of the text: the columns of
        `tokens.parquet`, and

        text: the token's text, with bytes that are not a whole character written as `\\xNN`.
        earlier: position at which the bigram's latest earlier occurrence ends; null if it is not
        repeated. 0 is the sequence's first token, which is context and has no row. nll_i (nats),
        rank_i, argmax_i, exact_i: as in the score file of model i.
        predicted_i: the text of argmax_i; null for a model with another tokenizer, which has no
        such token.
        right_i: whether the token is the model's first choice; null if such a model's tokens do not
        begin and end where this one does.

        `places`: of these rows alone, `sequence` and `position` (from 1). Raises UserError if there
        is no such sequence.
        """
        import polars as pl

        def chosen(path: Path, columns: Sequence[str]) -> pl.DataFrame:
            rows = pl.scan_parquet(path, glob=False).filter(pl.col("sequence").is_in(sequences))
            if places is not None:
                rows = rows.join(
                    places.lazy(), on=["sequence", "position"], how="semi", maintain_order="left"
                )
            return rows.select(columns).collect()

        for sequence in sequences:
            if not 0 <= sequence < self.num_sequences:
                remedy = f"sequences are numbered 0 to {self.num_sequences - 1:,}"
                raise UserError(f"no sequence {sequence:,}", where=self.slices, remedy=remedy)
        frame = chosen(self.labelled.path, _LABELS)
        frame = frame.with_columns(
            pl.col("source").cast(pl.String),
            pl.Series("text", self.text_of(frame["token"]), pl.String),
            (pl.col("position") - pl.col("distance")).alias("earlier"),
        )
        for place, of_model in enumerate(self.scores.values()):
            scores = chosen(of_model.path, _SCORES)
            likeliest = scores["argmax"].to_list()
            texts = zip(likeliest, self.text_of(likeliest), strict=True)
            predicted = [text if index >= 0 else None for index, text in texts]
            is_first = (pl.col("rank") == 0) & (
                (pl.col("argmax") == -1) | (pl.col("argmax") == frame["token"])
            )
            right = pl.when((pl.col("rank") >= 0) & pl.col("exact")).then(is_first).alias("right")
            scores = scores.with_columns(right, pl.Series("predicted", predicted, pl.String))
            frame = frame.hstack(
                scores.rename({name: f"{name}_{place}" for name in scores.columns})
            )
        return frame

    def text_of(self, ids: Iterable[int]) -> list[str]:
        """The text of each id. Pieces without bytes (WordPiece ...) are shown as written in the
        vocabulary."""
        pieces, backend = self.tokenizer.token_bytes, self.tokenizer.backend
        if pieces is None:
            return [_word_piece(backend.id_to_token(index) or "") for index in ids]
        return [
            pieces[index].decode("utf-8", "backslashreplace") if 0 <= index < len(pieces) else ""
            for index in ids
        ]

    def costliest(self, most: int) -> list[pl.DataFrame]:
        """Of each model but the first the `most` hits on which it loses most against that.

        Their `sequence` and `position`, the costliest first. Hits are the AR hits, or repeated
        tokens if there are no training counts.
        """
        import polars as pl

        order = ["lost", "sequence", "position"]
        reference, *others = self.scores.values()
        # What one of the models leaves out is left out of all.
        reference = replace(
            reference, read_exactly=max(scores.read_exactly for scores in self.scores.values())
        )
        costliest: list[pl.DataFrame] = []
        for start in range(0, len(others), MOST_AT_ONCE):
            some = others[start : start + MOST_AT_ONCE]
            of_some = [pl.DataFrame()] * len(some)
            for rows in batches(self.labelled, [reference, *some], ["sequence"]):
                hits = pl.DataFrame(rows).filter("ar_hit")
                for place, frame in enumerate(of_some):
                    lost = pl.col(f"nll_{place + 1}") - pl.col("nll_0")
                    losses = hits.select("sequence", "position", lost=lost)
                    both = pl.concat([frame, losses], how="diagonal")
                    of_some[place] = both.sort(order, descending=[True, False, False]).head(most)
            costliest += of_some
        return [frame.drop("lost") for frame in costliest]

    def most_telling(self) -> int:
        """The sequence in which the first two models differ most in summed NLL of hits; with one
        model, the largest summed NLL of hits.

        Without models, the sequence with most hits. Among equals the first.
        """
        import polars as pl

        hit = "ar_hit"
        sizes = {0: pl.col(hit), 1: pl.col("nll_0")}
        difference = pl.col("nll_1").cast(pl.Float64) - pl.col("nll_0")
        size = sizes.get(len(self.scores), difference).cast(pl.Float64).filter(hit).sum().abs()
        read = batches(self.labelled, list(self.scores.values()), ["sequence"])  # whole sequences
        groups = (pl.DataFrame(rows).group_by("sequence", maintain_order=True) for rows in read)
        totals = pl.concat(group.agg(size=size) for group in groups)
        return int(totals["sequence"][totals["size"].arg_max() or 0])

    def sequences_of(self, document: int) -> list[int]:
        """The sequences that contain predicted tokens of a document, in order; none if it does
        not exist."""
        import polars as pl

        rows = pl.scan_parquet(self.labelled.path, glob=False).filter(document=document)
        return rows.select(pl.col("sequence").unique().sort()).collect()["sequence"].to_list()

    def num_tokens(self, sequences: Sequence[int]) -> dict[int, int]:
        """The number of predicted tokens of each of these sequences: some are shorter than the
        others."""
        import polars as pl

        rows = pl.scan_parquet(self.labelled.path, glob=False).filter(
            pl.col("sequence").is_in(list(sequences))
        )
        return dict(rows.group_by("sequence").len().collect().iter_rows())


def score_files(comparison: Comparison, slices: Path) -> dict[str, Path]:
    """The score files of the reference and each model of a comparison, whether or not they are
    there."""
    models = (comparison.reference, *comparison.models)
    files = {model: PurePath(comparison.manifest["score_files"][model]).name for model in models}
    return {model: score_path(slices, model).with_name(file) for model, file in files.items()}


def open_excerpts(
    slices: Path, models: Sequence[str] = (), comparison: Comparison | None = None
) -> Excerpts:
    """Opens a slice directory to read single sequences, with the scores of `models`, possibly none;
    names may be those of `comparison`.

    Raises UserError if labels, tokenizer or scores are missing, damaged or of other sequences; it
    names the models that are scored.
    """
    labelled = open_tokens(slices / "tokens.parquet", needs_counts=False)
    known = {} if comparison is None else score_files(comparison, slices)
    scores = {}
    for model in models:
        file = known.get(model) or find_scores(slices, model)
        if not file.is_file():
            remedy = (
                f"{_scored_names(slices)}score it with `recallkit score {model} --slices {slices}`"
            )
            raise UserError("not scored on these slices", where=model, remedy=remedy)
        scores[model] = open_scores(file, labelled)
    return Excerpts(
        slices, scores, labelled, load_slices_tokenizer(slices, labelled.manifest["tokenizer"])
    )


def _scored_names(slices: Path) -> str:
    names = sorted(scored_models(slices).values())
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return f"scored are {', '.join(names[:_MOST_NAMED])}{more}; " if names else ""


def _word_piece(piece: str) -> str:
    """The text of a piece without bytes: words begin with a space, continuations of words do
    not."""
    return piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
