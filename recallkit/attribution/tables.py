"""The gap between models and a reference, split over AR hits, other tokens and further slices: the main question of recallkit.

Every table is made of the sums of `measure.sums`: the tables are consistent with each other because none reads the tokens again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display.notebook import Shown
from recallkit.errors import UserError
from recallkit.measure.classes import Classes
from recallkit.measure.intervals import NUM_RESAMPLES
from recallkit.measure.labelled import LabelledTokens, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, clipped_share, gap_intervals, gap_rows
from recallkit.measure.sums import Sums, add_up
from recallkit.slicing.definitions import SPLIT, Slice
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.measure.shares import GapIntervals

EMPTY_SLICE, NO_HITS = "no tokens in this slice", "no token is an AR hit"

_CONTROL, _RANGE = ("control_share", "control_ci_low", "control_ci_high"), ("range_low", "range_high")
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, repr=False)
class GapTables(Shown):
    """The gap of each model to the reference. NLLs and differences are in nats per token, shares are fractions.

    gap: model x source (ALL first) x slice (all, ar_hit, other, repeated, then the requested ones); `share_of_tokens` and `gap_share`
    are within the same source. `enrichment` is `gap_share` over `share_of_tokens`. `control_share`, of ar_hit and repeated: the share if
    each token differed as the first occurrence of its bigram in its sequence does, where nothing can be recalled. `range_low` and
    `range_high`, of ar_hit of ALL: the least and the largest share over thresholds from a quarter to four times the one in use. `void`, as
    in by_threshold and by_partition: whether the share means nothing, which `note` explains.
    `bytes` of text in the slice's tokens, and `bpb_*` = bits of NLL per byte, if the slices have them (null otherwise).
    by_count, by_distance, by_match, by_position: model x bucket (`low`..`high`, both included); their shares are of all tokens.
    by_count: `nll_first_*` are the mean NLLs of the first occurrences, in the same sequence, of the bigrams of a bucket's repeated tokens.
    by_match: by `match_length` of tokens.parquet; bucket 0 is the tokens that are not repeated, which by_distance omits.
    by_threshold: model x largest training count of an AR hit; shares of all tokens.
    by_partition: model x class of `slicing.definitions.PARTITION`, whose tokens and shares add up to all that have a training count.
    by_context, only with `context_gain`: model x `last` (ids of context) x class (all tokens, AR hits, other repeated, not repeated;
    key_tokens) x whether the reference gains at least 1 nat from the context further back (null: either). `gain_*`: NLL with the last ids
    alone less that with the full context; `delta_nll` = `local_gap` + `far_gap`; `far_share`: of the whole gap; `mirror_share`: the same
    with the two models exchanged (docs/context.md).
    by_divergence, only with `divergence`: model x `by` (slice, distance, position) x `slice` x bucket: `kl`, the mean KL(reference | model)
    of predictions in nats per token, and `agreement`, the share of tokens where both have the same likeliest token. Of slices, quantiles
    of the tokens' divergences, too (`kl_p50`, `kl_p95`, `kl_p99`), and of AR hits and repeated tokens `kl_first`, the mean where
    their bigrams first occur in their sequences, and `ratio`, `kl` over that (docs/divergence.md).
    by_overlap, only of two requested slices or more: the gap divided among them (Shapley values of the game in which a set of slices is
    worth the gap in their union: a token's gap goes in equal parts to the slices that contain it), and a row of tokens in none; `tokens`,
    `share_of_tokens` and `gap_share` add up to all. `plain_share_of_tokens`, `plain_share`: of all tokens of the slice, as in gap.
    by_price, only with `price`: a row for each model, the reference first; `state_bytes` of one sequence after `state_ids` ids, null where
    unknown; the perplexity; the loss to the reference, nats per token, in each of `price.CLASSES`;
    `ratio`, the loss of AR hits over that of first occurrences where this is above 0, and `overwriting`, that of overwritten AR hits less
    that of the others; `accuracy` on AR hits, the share that is ranked first; `recalled`: `points` of `intervene` (`InterveneTables`).
    All have 95 % intervals, `*_ci_low` and `*_ci_high`. `family`: the model of which it is a variant.
    by_document: model x document (numbered as in tokens.parquet), without intervals: `tokens`, `ar_hits`, and NLLs in nats, summed over its
    tokens (`nats_*`) and over its AR hits (`ar_nats_*`): it adds `nats_model` - `nats_reference` to the gap.

    In each other table `delta_ci_*` and `ci_*` are the 95 % intervals of `delta_nll` and of `gap_share`, `clusters` the documents (or what
    else is resampled) that have tokens of the row, `effective_clusters` their effective number (`measure.intervals.effective_number`).
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
    by_overlap: pl.DataFrame | None = None
    by_price: pl.DataFrame | None = None

    def frames(self) -> dict[str, pl.DataFrame]:
        """The tables that are there, by name."""
        return {field.name: getattr(self, field.name) for field in fields(self) if getattr(self, field.name) is not None}

    def ordered(self, models: Sequence[str]) -> GapTables:
        """The same tables with the rows of models in this order, those of each as they are."""
        import polars as pl

        place = pl.col("model").replace_strict({model: place for place, model in enumerate(models)}, default=-1)  # the reference first
        return GapTables(**{name: frame.sort(place, maintain_order=True) for name, frame in self.frames().items()})


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
    """Splits the gap between each of `models` and `reference` (score files) over the tokens of `tokens` (labels).

    `names`: what the tables call them, the reference first, if not as their files do.
    The slices are AR hits and other tokens, further `slices`, and the classes of PARTITION. `clean`: of the tokens that are not known
    to be in the training text, whose bytes are not known, so that there are no bits per byte.

    A slice's NLL is the mean over its tokens; its share of the gap is the summed difference in it over the summed
    difference in all tokens (Zoology section 3.1, appendix C.1). Intervals are 95 % expanded percentile intervals
    (`measure.intervals.expanded_interval`) over clusters, one of CLUSTERS (`num_resamples` resamples drawn from `seed`, the same for every
    model and slice), for all sources together, for each of the MAX_RESAMPLED_SOURCES largest by tokens, and for all further ones as one.
    The result is bit-identical for the same files and arguments.

    Raises UserError if a file is not as expected, scores are of other sequences, or models repeat.
    """
    import polars as pl

    labelled = open_tokens(tokens)
    scores = [open_scores(path, labelled) for path in (reference, *models)]
    names = names or [score.model for score in scores]
    _check_models(names[1:])
    sums = add_up(labelled, scores, slices, cluster, clean=clean)
    per_source = len(sums.rows["slices"]) + len(sums.rows["first"])
    whole = np.arange(len(sums.rows["by_source"])) // per_source * per_source
    intervals = gap_intervals({name: sums.tables[name] for name in sums.rows}, {"by_source": whole}, num_resamples, seed)
    made = _Tables(
        labelled,
        names,
        sums,
        intervals,
        cluster,
        num_bytes={} if clean else _bytes_by_slice(labelled),
    )
    pairs = [made.pair(model) for model in range(1, len(names))]
    return GapTables(**{name: pl.concat([pair[name] for pair in pairs]) for name in pairs[0]})


def _check_models(models: Sequence[str]) -> None:
    if not models:
        raise UserError("no model to compare with the reference", remedy="name two models: the reference first")
    for model in models:
        if models.count(model) > 1:
            raise UserError("given twice", where=model, remedy="name each model once")


class _Tables:
    """The tables of each pair, from the sums and intervals of all."""

    def __init__(
        self,
        tokens: LabelledTokens,
        names: Sequence[str],
        sums: Sums,
        intervals: Mapping[str, GapIntervals],
        cluster: str,
        num_bytes: Mapping[tuple[str, str], int],
    ) -> None:
        self._names, self._sums, self._intervals, self._cluster, self._num_bytes = names, sums, intervals, cluster, num_bytes
        self._vocab_size = tokens.vocab_size
        classes = Classes(tokens.max_count, tokens.seq_len)
        self._extra, self._least, self._most = classes.extra, classes.of_counts["quarter"], classes.of_counts["fourfold"]

    def pair(self, model: int) -> dict[str, pl.DataFrame]:
        """The tables of the reference and model number `model` (from 1), by name."""
        rows = {"gap": self._gap(model)}
        whole = WholeGap.of(rows["gap"][0], self._vocab_size, self._cluster)
        rows |= {name: self._rows(name, model) for name in self._sums.rows if name not in ("slices", "first", "by_source")}
        for row, first in zip(rows["by_count"], self._rows("first_by_count", model), strict=True):
            row |= {f"nll_first_{side}": first[f"nll_{side}"] if row["repeated"] else None for side in ("reference", "model")}
        for name in ("by_count", "by_distance", "by_match", "by_position"):
            rows[name] = [row for row in rows[name] if row["tokens"]]
        last = max(row["high"] for row in rows["by_count"])
        rows["by_threshold"] = [row for row in rows["by_threshold"] if row["threshold"] in self._extra or row["threshold"] <= last]
        for row in rows["by_threshold"]:
            row["gap_share_clipped"] = clipped_share(whole.gap, row["gap_share"])
            _judge(row, whole, whole.describe(row["gap_share"], _bounds(row)))
        hits = next(row for row in rows["gap"] if row["slice"] == "ar_hit")
        near = [row["gap_share"] for row in rows["by_threshold"] if not row["void"] and self._least <= row["threshold"] <= self._most]
        if near and not hits["void"]:
            hits |= {"range_low": min(near), "range_high": max(near)}
        for row in (*rows["by_partition"], *rows.get("by_overlap", ())):
            _judge(row, whole, whole.describe())
        plain = {row["slice"]: row for row in rows["gap"][: len(self._sums.rows["slices"])]}
        for row in rows.get("by_overlap", ()):
            of = plain.get(row["slice"], row)  # a token in none of them is not divided
            row |= {"plain_share_of_tokens": of["share_of_tokens"], "plain_share": of["gap_share"]}
        return {name: schemas.frame_of(f"gap/{name}", of_table) for name, of_table in rows.items()} | {
            "by_document": self._documents(model)
        }

    def _documents(self, model: int) -> pl.DataFrame:
        """The rows of documents, which may be millions: column by column."""
        import polars as pl

        documents = self._sums.documents
        (tokens, hits), reference, of_model = documents.sums[0].astype(np.int64), documents.sums[1], documents.sums[1 + model]
        columns = {"document": documents.number, "source": documents.source, "tokens": tokens, "ar_hits": hits}
        for side, (all_tokens, ar_hits) in {"reference": reference, "model": of_model}.items():
            columns |= {f"nats_{side}": all_tokens, f"ar_nats_{side}": ar_hits}
        names = {"reference": pl.lit(self._names[0]), "model": pl.lit(self._names[model])}
        return pl.DataFrame(columns).with_columns(**names).select(list(schemas.LAYOUTS["gap/by_document"]))

    def _rows(self, name: str, model: int, whole: np.ndarray | None = None) -> list[Row]:
        """The rows of a table of a pair; `whole`: the sums of all tokens that they are shares of, of all sources if not given."""
        keys = self._sums.rows[name.removeprefix("first_")].keys
        whole = self._sums.tables["slices"].totals[:, :1] if whole is None else whole
        rows = gap_rows(keys, self._sums.tables[name], whole, model, self._intervals.get(name))
        return [{"reference": self._names[0], "model": self._names[model], **row} for row in rows]

    def _gap(self, model: int) -> list[Row]:
        """The slices of all sources, then of one source after another."""
        num_slices, num_controls = len(self._sums.rows["slices"]), len(self._sums.rows["first"])
        size = num_slices + num_controls
        wholes = np.repeat(self._sums.tables["by_source"].totals[:, ::size], size, axis=1)  # the first row of each source
        every = self._rows("by_source", model, wholes)
        found = []
        for start in range(0, len(every), size):
            rows, controls = every[start : start + num_slices], every[start + num_slices : start + size]
            self._complete(rows, {row["slice"]: row for row in controls}, every[0])
            found += rows
        return found

    def _complete(self, rows: Sequence[Row], controls: Mapping[str, Row], overall: Row) -> None:
        """Adds clipped shares, controls, bits per byte and notes to the rows of one source; `overall`: all tokens of all sources."""
        by_slice = {row["slice"]: row for row in rows}
        wholes = [WholeGap.of(row, self._vocab_size, self._cluster) for row in (overall, rows[0])]
        whole = replace(wholes[1], uniform=list(dict.fromkeys(note for of in wholes for note in of.uniform)))
        hits = by_slice["ar_hit"]
        of_split, of_others = whole.describe(hits["gap_share"], _bounds(hits)), whole.describe()
        clipped = _clipped_shares(by_slice)
        for name, row in by_slice.items():
            row |= {"cluster": self._cluster, "gap_share_clipped": clipped[name], **dict.fromkeys((*_CONTROL, *_RANGE))}
            row |= _bits_per_byte(row, self._num_bytes.get((row["source"], name)))
            if row["gap_share"] is None:
                row |= {"ci_low": None, "ci_high": None}
            if name in controls and controls[name]["gap_share"] is not None:
                row |= dict(zip(_CONTROL, (controls[name][of] for of in ("gap_share", "ci_low", "ci_high")), strict=True))
            _judge(row, whole, of_split if name in [slice_.name for slice_ in SPLIT] else of_others)


def _judge(row: Row, whole: WholeGap, notes: Sequence[str]) -> None:
    """Adds to a row, whose intervals are there, `void` and `note`: why the share is void, or else `notes` on the gap."""
    of_tokens = row["share_of_tokens"] if row.get("slice") != "all" else None
    of_slice = {"share_of_tokens": of_tokens, "effective": row["effective_clusters"], "slice_": row.get("slice", "ar_hit")}
    empty = NO_HITS if of_slice["slice_"] == "ar_hit" else EMPTY_SLICE
    why = whole.why_void(**of_slice) if row["tokens"] else [*whole.of_gap(), empty]
    row["note"] = "; ".join(dict.fromkeys(why or notes))
    row["void"] = row["gap_share"] is None or bool(why)


def _clipped_shares(by_slice: Mapping[str, Row]) -> dict[str, float | None]:
    """The clipped shares of the slices of one source."""
    overall = by_slice["all"]["delta_nll"]
    clipped = {name: clipped_share(overall, row["gap_share"]) for name, row in by_slice.items()}
    hits, other = clipped["ar_hit"], by_slice["other"]["gap_share"]
    # The share that is not the hits' goes to the other tokens, so that the two clipped shares add up to the gap.
    return {**clipped, "all": by_slice["all"]["gap_share"], "other": other if other is None or hits is None else 1.0 - hits}


def _bounds(row: Row) -> tuple[float, float] | None:
    """The interval of a row's share; None if there is none."""
    return None if row["ci_low"] is None else (row["ci_low"], row["ci_high"])


def _bytes_by_slice(tokens: LabelledTokens) -> dict[tuple[str, str], int]:
    """Bytes of text by source and slice, if the labels' manifest has them."""
    found: dict[tuple[str, str], int] = {}
    for source, whole, hits in tokens.manifest.get("num_bytes") or ():
        found |= {(source, "all"): whole, (source, "ar_hit"): hits, (source, "other"): whole - hits}
    return found


def _bits_per_byte(row: Row, num_bytes: int | None) -> Row:
    """The bytes of a row's tokens and the bits per byte: NLLs summed over them, in bits, over the bytes; None where these are not known."""
    bits: dict[str, float | None] = {}
    for side in ("reference", "model"):
        nll = row[f"nll_{side}"]
        bits[f"bpb_{side}"] = nll * row["tokens"] / math.log(2) / num_bytes if num_bytes and nll is not None else None
    return {"bytes": num_bytes, **bits}
