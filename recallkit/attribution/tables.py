"""The gap between models and a reference, divided over AR hits, other tokens and further slices;
recall gain and what is retained.

Every table is made of the sums of `measure.sums`: the tables are consistent with each other because
none reads the tokens again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import NotebookResult
from recallkit.display.progress import one_after_another, progress
from recallkit.errors import UserError
from recallkit.measure.labelled import MOST_AT_ONCE, open_scores, open_tokens
from recallkit.measure.ratio import NUM_RESAMPLES, are_distinct, ratio
from recallkit.measure.rows import count_cuts
from recallkit.measure.shares import WholeGap, efficiency, gap_figures
from recallkit.measure.sums import add_up
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.labelled import LabelledTokens
    from recallkit.measure.ratio import Ratio
    from recallkit.measure.sums import Sums
    from recallkit.slicing.definitions import Slice


@dataclass(frozen=True, slots=True, repr=False)
class GapTables(NotebookResult):
    """The gap of each model to the reference, and the recall of both. NLLs are in nats per token,
    shares are fractions.

    All but by_document have a row for each `model` and what the table is by. In each, of the row's
    tokens: `nll_*` and `ppl_*` of both sides; `delta_nll`, the gap; `gap_share`, the part of the
    gap of all tokens that is in the row; `gain_*`, recall gain, the mean of p(token) less p(token
    at the first occurrence of its bigram in the sequence), a fraction; `retained`, the model's over
    the reference's, null where the reference's is not shown to exceed 0.001. `*_ci_low` and
    `*_ci_high`: 95 % intervals (`measure.ratio.ratio`) over `clusters`, documents or what else is
    resampled, of `effective_clusters`. `void`: the gap share means nothing, which `note` explains.

    gap: source (ALL first) x slice (all, ar_hit, other, repeated, then the requested ones); shares
    are within the same source.
    `p_*`, `first_p_*`: mean probabilities of the tokens and at the first occurrences of their
    bigrams. `control_share`: the share if each token differed as that first occurrence does.
    `efficiency_*`: recall efficiency, 1 less summed NLL over that at these first occurrences; null
    of a slice with tokens that repeat no bigram.
    `is_distinct`: whether the gap is significant among all models (Holm). `bytes` of text in the
    slice's tokens, and `bpb_*` = bits of NLL per byte, if the slices have them (null otherwise).
    by_count, by_distance, by_match, by_position: bucket (`low`..`high`, both included); by_count
    with `repeated`, the others with `slice`, ar_hit or other. by_match: by `match_length` of
    tokens.parquet; bucket 0 is the tokens that are not repeated.
    by_threshold: largest training count of an AR hit. by_partition: class of
    `slicing.definitions.PARTITION`, whose shares add up. Without training counts no token is known
    to be an AR hit: gap, by_distance, by_match and by_position have the slices repeated and
    not_repeated instead of ar_hit and other, and by_document sums over repeated ones; by_count,
    by_threshold, by_partition are empty.
    by_document: documents (numbered as in tokens.parquet), without intervals: `tokens`, `ar_hits`,
    and NLLs in nats, summed over its tokens (`nats_*`) and over its AR hits (`ar_nats_*`).
    by_context, only with `context_gain`: `last` (ids of context) x class (all tokens, AR hits,
    other repeated, not repeated; key_tokens) x whether the reference gains at least 1 nat from the
    context further back (null: either). `context_gain_*`: NLL with the last ids alone less that
    with the full context; `delta_nll` = `local_gap` + `far_gap`; `far_share`: of the whole gap;
    `mirror_share`: the same with the two models exchanged (docs/context.md).
    by_divergence, only with `divergence`: `by` (slice, distance, position) x `slice` x bucket:
    `kl`, the mean KL(reference | model) of predictions in nats per token, and `agreement`, the
    share of tokens where both have the same likeliest token. Of slices, quantiles of the tokens'
    divergences, too (`kl_p50`, `kl_p95`, `kl_p99`), and of AR hits and repeated tokens `kl_first`,
    the mean at the first occurrences of their bigrams, and `ratio`, `kl` over that
    (docs/divergence.md).
    by_price, only with `price`: the reference first; `state_bytes` of one sequence after
    `state_ids` ids, null where unknown; the perplexity; recall `gain` on AR hits, and `retained` of
    the reference's; the loss to the reference on AR hits and where a bigram first occurs. `family`:
    the model of which it is a variant.
    by_placebo, only with `placebo`: the reference's own run, interpolated to the model's NLL
    between two checkpoints: `weight` of `checkpoint`, the rest of `next_checkpoint`.
    """

    gap: pl.DataFrame
    by_count: pl.DataFrame
    by_distance: pl.DataFrame
    by_match: pl.DataFrame
    by_position: pl.DataFrame
    by_threshold: pl.DataFrame
    by_partition: pl.DataFrame
    by_document: pl.DataFrame
    by_context: pl.DataFrame | None = None
    by_divergence: pl.DataFrame | None = None
    by_price: pl.DataFrame | None = None
    by_placebo: pl.DataFrame | None = None

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables that are there, by name."""
        frames = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: frame for name, frame in frames.items() if frame is not None}

    def ordered(self, models: Sequence[str]) -> GapTables:
        """The same tables with the rows of models in this order, those of each as they are."""
        import polars as pl

        places = {model: place for place, model in enumerate(models)}
        place = pl.col("model").replace_strict(places, default=-1)  # the reference first
        return GapTables(
            **{
                name: frame.sort(place, maintain_order=True)
                for name, frame in self.frames().items()
            }
        )


def attribute_gap(
    tokens: Path,
    reference: Path,
    models: Sequence[Path],
    *,
    names: Sequence[str] | None = None,
    slices: Sequence[Slice] = (),
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> GapTables:
    """Divides the gap between each of `models` and `reference` (score files) over the tokens of
    `tokens` (labels).

    `names`: what the tables call them, the reference first, if not as their files do. The slices
    are AR hits and other tokens, further `slices`, and the classes of PARTITION. `clean`: of the
    tokens that are not known to be in the training text, whose bytes are not known, so that there
    are no bits per byte.

    Intervals are over clusters, one of CLUSTERS (`num_resamples` resamples drawn from `seed`, the
    same for every model and slice), for all sources together, for each of the MAX_RESAMPLED_SOURCES
    largest by tokens, and for all further ones as one. The result is bit-identical for the same
    files and arguments.

    Raises UserError if a file is not as expected, scores are of other sequences, or models repeat.
    """
    import polars as pl

    labelled = open_tokens(tokens, needs_counts=False)
    first, *others = (open_scores(path, labelled) for path in (reference, *models))
    names = names or [score.model for score in (first, *others)]
    _check_models(names[1:])
    # What one of them leaves out is left out of all.
    first = replace(first, read_exactly=max(score.read_exactly for score in (first, *others)))
    num_bytes = {} if clean else _bytes_by_slice(labelled)
    pairs: list[_Pair] = []
    for start in one_after_another(range(0, len(others), MOST_AT_ONCE)):
        some = others[start : start + MOST_AT_ONCE]
        sums = add_up(labelled, [first, *some], slices, cluster, clean=clean)
        of_some = [names[0], *names[1 + start :][: len(some)]]
        work = _Attribution(labelled, of_some, sums, cluster, num_bytes, num_resamples, seed)
        with progress("comparing", total=len(some), unit="models") as show:
            for model in range(1, 1 + len(some)):
                pairs.append(work.pair(model))
                show(model)
    distinct = are_distinct([pair.gap for pair in pairs])
    judged = [
        pair.judged(is_distinct, labelled, cluster)
        for pair, is_distinct in zip(pairs, distinct, strict=True)
    ]
    frames = {}
    for name in judged[0]:
        frames[name] = pl.concat([tables[name] for tables in judged])
    return GapTables(**(frames if labelled.has_counts else _of_repeated(frames)))


HITS_OF_REPEATED = {"repeated": "ar_hit", "not_repeated": "other"}
"""Slices of a comparison without training counts, and those whose place they take: all repeated
bigrams, that of AR hits."""


def has_counts(slices: Mapping[str, Any]) -> bool:
    """Whether training counts are known, by the labels' manifest: they tell AR hits from other
    repeated bigrams."""
    return slices["counts"] is not None


def hit_of(slices: Mapping[str, Any]) -> str:
    """What a token is called on which recall is measured, by the labels' manifest."""
    return "AR hit" if has_counts(slices) else "repeated bigram"


def rows_by_slice(frame: pl.DataFrame) -> dict[tuple[str, str, str], dict[str, Any]]:
    """(model, source, slice) -> row of the gap table; the source ALL is all of them, even if one is
    called so.

    Without training counts the rows of `HITS_OF_REPEATED` are also those of AR hits and other
    tokens: their `slice` says what they are.
    """
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for row in frame.to_dicts():  # the totals of each model come first
        rows.setdefault((row["model"], row["source"], row["slice"]), row)
    for (model, source, name), row in list(rows.items()):
        if name in HITS_OF_REPEATED:
            rows.setdefault((model, source, HITS_OF_REPEATED[name]), row)
    return rows


def _of_repeated(frames: Mapping[str, pl.DataFrame]) -> dict[str, pl.DataFrame]:
    """The tables with empty ones of training counts; rows of AR hits are named for what they are,
    all repeated bigrams."""
    import polars as pl

    names = {hits: repeated for repeated, hits in HITS_OF_REPEATED.items()}
    note = (
        pl.col("note")
        .str.replace("an AR hit", "a repeated bigram")
        .str.replace("AR hits", "repeated bigrams")
    )
    frames = {
        **frames,
        "gap": frames["gap"].filter(pl.col("slice") != "repeated").with_columns(note),
    }
    for name in ("gap", "by_distance", "by_match", "by_position"):
        frames[name] = frames[name].with_columns(pl.col("slice").replace(names))
    return frames | {
        name: schemas.frame_of(f"gap/{name}", [])
        for name in ("by_count", "by_threshold", "by_partition")
    }


def _check_models(models: Sequence[str]) -> None:
    if not models:
        raise UserError(
            "no model to compare with the reference", remedy="name two models: the reference first"
        )
    for model in models:
        if models.count(model) > 1:
            raise UserError("given twice", where=model, remedy="name each model once")


@dataclass(frozen=True, slots=True)
class _Pair:
    """The tables of the reference and a model by name, whose shares are not judged yet; `gap`: of
    each row of the gap table."""

    tables: dict[str, pl.DataFrame]
    gap: Ratio

    def judged(
        self, is_distinct: np.ndarray, tokens: LabelledTokens, cluster: str
    ) -> dict[str, pl.DataFrame]:
        """The tables with notes on shares that are void; `is_distinct`: of each row, among all
        models of the command."""
        import polars as pl

        known = [None if np.isnan(number) else bool(number) for number in is_distinct]
        gap = self.tables["gap"].with_columns(is_distinct=pl.Series(known, dtype=pl.Boolean))
        rows = gap.to_dicts()
        overall = gap_of_source = WholeGap.from_row(rows[0], tokens.vocab_size, cluster)
        for row in rows:
            if row["slice"] == "all":  # the first row of a source
                gap_of_source = WholeGap.from_row(row, tokens.vocab_size, cluster)
            # A pair is no better than a guess in its source or in all.
            uniform = list(dict.fromkeys([*overall.uniform, *gap_of_source.uniform]))
            note = replace(gap_of_source, uniform=uniform).why_void(row, row["slice"])
            row |= {"note": note, "void": row["gap_share"] is None or bool(note)}
        judged = {**self.tables, "gap": schemas.frame_of("gap/gap", rows)}
        for name in judged.keys() & {"by_threshold", "by_partition"}:
            notes = [overall.why_void(row, "ar_hit") for row in judged[name].to_dicts()]
            judged[name] = judged[name].with_columns(
                note=pl.Series(notes, dtype=pl.String),
                void=pl.Series([bool(note) for note in notes], dtype=pl.Boolean),
            )
        return judged


_UNJUDGED = {"note": "", "void": False}


class _Attribution:
    """The tables of each pair of the reference and a model, from the sums of all."""

    def __init__(
        self,
        tokens: LabelledTokens,
        names: Sequence[str],
        sums: Sums,
        cluster: str,
        num_bytes: Mapping[tuple[str, str], int],
        num_resamples: int,
        seed: int,
    ) -> None:
        self._tokens, self._names, self._sums = tokens, names, sums
        self._cluster, self._num_bytes = cluster, num_bytes
        self._draws = (num_resamples, seed)
        self._all_tokens = sums.tables["slices"].slice("all")

    def pair(self, model: int) -> _Pair:
        """The tables of the reference and model number `model` (from 1)."""
        import polars as pl

        by_source = self._sums.tables["by_source"]
        tables = {"gap": self._gap(model), "by_document": self._documents(model)}
        for name, sums in self._sums.tables.items():
            if name in ("slices", "by_source"):
                continue
            figures: dict[str, Any] = dict(gap_figures(sums, self._all_tokens, model, *self._draws))
            if name in ("by_threshold", "by_partition"):
                figures |= _UNJUDGED
            frame = schemas.frame_of_columns(
                f"gap/{name}", sums.keys, {**self._pair_names(model), **figures}
            )
            tables[name] = frame if "void" in figures else frame.filter(pl.col("tokens") > 0)
        if self._tokens.has_counts:
            last = max(tables["by_count"]["high"])
            is_used = pl.col("threshold").is_in([*count_cuts(self._tokens.max_count).values()]) | (
                pl.col("threshold") <= last
            )
            tables["by_threshold"] = tables["by_threshold"].filter(is_used)
        return _Pair(tables, ratio(by_source.gap(model), by_source["tokens"], *self._draws))

    def _pair_names(self, model: int) -> dict[str, str]:
        return {"reference": self._names[0], "model": self._names[model]}

    def _gap(self, model: int) -> pl.DataFrame:
        """The slices of all sources, then of one source after another."""
        sums = self._sums.tables["by_source"]
        # Of slices all, ar_hit, all, ar_hit of two sources the first rows are 0, 0, 2, 2.
        num_slices = len(self._sums.tables["slices"].keys)
        first_rows = np.repeat(np.flatnonzero(sums.keys["slice"] == "all"), num_slices)
        all_tokens = sums.take(first_rows)
        tokens = sums["tokens"].total
        figures: dict[str, Any] = dict(gap_figures(sums, all_tokens, model, *self._draws))
        control = ratio(sums.gap(model, "first_nll"), all_tokens.gap(model), *self._draws)
        with np.errstate(divide="ignore", invalid="ignore"):
            for name in ("p", "first_p"):
                figures |= {
                    f"{name}_reference": sums[f"{name}_0"].total / tokens,
                    f"{name}_model": sums[f"{name}_{model}"].total / tokens,
                }
        for side, number in (("reference", 0), ("model", model)):
            figures |= efficiency(sums, number, *self._draws).columns(f"efficiency_{side}")
        figures |= {
            **control.columns("control_share"),
            "is_distinct": None,
            "cluster": self._cluster,
        }
        blank = {**_UNJUDGED, "bytes": None, "bpb_reference": None, "bpb_model": None}
        frame = schemas.frame_of_columns(
            "gap/gap", sums.keys, {**self._pair_names(model), **figures, **blank}
        )
        return schemas.frame_of(
            "gap/gap", [row | self._bits_per_byte(row) for row in frame.to_dicts()]
        )

    def _bits_per_byte(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """The bytes of a row's tokens and the bits of NLL over them; None where these are not
        known."""
        num_bytes = self._num_bytes.get((row["source"], row["slice"]))
        bits: dict[str, Any] = {"bytes": num_bytes}
        for side in ("reference", "model"):
            if num_bytes and row[f"nll_{side}"] is not None:
                bits[f"bpb_{side}"] = row[f"nll_{side}"] * row["tokens"] / math.log(2) / num_bytes
        return bits

    def _documents(self, model: int) -> pl.DataFrame:
        columns = {"nats_reference": "nll_0", "nats_model": f"nll_{model}"}
        columns |= {f"ar_{name}": f"ar_{column}" for name, column in columns.items()}
        documents = self._sums.documents
        figures = {name: documents[column] for name, column in columns.items()}
        return schemas.frame_of_columns(
            "gap/by_document", documents, {**self._pair_names(model), **figures}
        )


def _bytes_by_slice(tokens: LabelledTokens) -> dict[tuple[str, str], int]:
    """Bytes of text by source and slice, if the labels' manifest has them."""
    sizes: dict[tuple[str, str], int] = {}
    for source, num_bytes, hits in tokens.manifest.get("num_bytes") or ():
        sizes[source, "all"] = num_bytes
        if hits is not None:  # training counts are known
            sizes |= {(source, "ar_hit"): hits, (source, "other"): num_bytes - hits}
    return sizes
