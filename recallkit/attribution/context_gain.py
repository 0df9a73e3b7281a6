"""What models gain from far context, and the gap split by it: NLLs with the last k ids alone beside those with the full context.

A token's gain is G_k = NLL with its last k ids alone - NLL with the full context, in nats. The gap splits exactly, token by token:

    NLL(model) - NLL(ref) = [NLL_k(model) - NLL_k(ref)] + [G_k(ref) - G_k(model)]
                            the local gap                 the far gap

Key tokens are those of LongPPL (arXiv 2410.23771, section 3.2), whose windows `scoring.scores.LastIds` has. Beside it the
in-context-learning score of Olsson et al. (2209.11895): how much lower a model's loss is late in the context than early.

Then the same as tables: of all tokens, and by class.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.display import cells
from recallkit.display.cells import counted, or_dash, shares_of_leads
from recallkit.display.tables import Table
from recallkit.measure.intervals import NUM_RESAMPLES, estimates, expanded_interval, freedom_of_ratio, holm, number_or_none, p_values
from recallkit.measure.labelled import LabelledTokens, Question, Scores, answers, batches, open_scores, open_tokens
from recallkit.measure.shares import WholeGap, gap_rows
from recallkit.measure.sums import Clusters, RowSums, resampled, row_sums
from recallkit.storage import schemas

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from recallkit.scoring.scores import LastIds

    Cells = dict[tuple[str, int, str, bool | None], dict[str, Any]]

GAINS = 1.0
"""Nats that a token's NLL falls by at least where a model gains from the context further back: its probability is e times as high."""

ALPHA, BETA = 2.0, -2.0
"""LongPPL's thresholds in nats: a key token's long-short difference is above ALPHA, and its log-probability with all context above BETA."""

ALL, KEY_TOKENS = "all", "key_tokens"
CLASSES = ("ar_hit", "other_repeated", "not_repeated")
"""A partition of the tokens by their labels; each is divided further by whether the reference gains."""

_SHAPE = (len(CLASSES), 2, 2, 2)
"""A token's code in mixed radix: class, whether the reference gains, whether it is a key token, whether the model gains."""

ROWS = (*((name, gains) for name in (ALL, *CLASSES) for gains in (None, True, False)), (KEY_TOKENS, None))
"""The rows of the table for one model and one k: the class, and whether the reference gains (None: either)."""

EARLY, LATE = 50, 500
"""Positions of the two tokens of the in-context-learning score: predicted from so many ids."""

_MIRRORED = [place for place, (_, gains) in enumerate(ROWS) if gains]
_MEANS = ("delta", "gain_reference", "gain_model", "local_gap", "far_gap")
_WHOLE = ("delta_nll", "delta_ci_low", "delta_ci_high", "effective_clusters")


def context_gains(
    tokens: Path,
    full: Mapping[str, Path],
    last: Mapping[LastIds, Sequence[Path]],
    *,
    cluster: str = "document",
    clean: bool = False,
    num_resamples: int = NUM_RESAMPLES,
    seed: int = 0,
) -> pl.DataFrame:
    """The table `by_context`: a row for each model, each number of last ids, and each of ROWS; see `GapTables`.

    `full`: names and score files with the full context, the reference first; `last`: those with the last ids alone, in the same order.
    Intervals are those of `attribute_gap`, from the same resamples. Raises UserError if a file is not as expected.
    """
    labelled, (reference, *models) = open_tokens(tokens), full
    scores = [open_scores(path, labelled) for paths in (full.values(), *last.values()) for path in paths]
    pairs = _collect(labelled, scores, len(full), cluster, clean=clean)
    samples = resampled([pair.of_groups(pair.tokens[:, 0] > 0) for pair in pairs], num_resamples, seed)
    asked = [(of_last, model) for of_last in last for model in models]
    tables = {key: _table(pair, sampled) for key, pair, sampled in zip(asked, pairs, samples, strict=True)}
    distinct: dict[tuple[LastIds, str], bool | None] = {}
    for of_last in last:  # gaps of all tokens, each tested against zero with those of the other models
        wholes = [tables[of_last, model][0] for model in models]
        *figures, effective = (np.array([whole[name] for whole in wholes], np.float64) for name in _WHOLE)
        p = p_values(np.stack(figures), effective - 1)
        distinct |= {(of_last, model): None if np.isnan(of) else bool(is_one) for model, of, is_one in zip(models, p, holm(p), strict=True)}
    rows: list[dict[str, Any]] = []
    for model in models:
        for of_last in last:
            table = tables[of_last, model]
            whole = WholeGap.of({**table[0], "is_distinct": distinct[of_last, model]}, labelled.vocab_size, cluster)
            keys = {"reference": reference, "model": model, "last": of_last.ids, "stride": of_last.stride}
            for row in table:
                why = whole.why_void(effective=row["effective_clusters"], slice_=row["slice"])
                note = "; ".join(dict.fromkeys([*whole.describe(), *why]))
                rows.append({**keys, **row, "note": note, "void": row["far_share"] is None or bool(why)})
    return schemas.frame_of("gap/by_context", rows)


def _collect(tokens: LabelledTokens, scores: Sequence[Scores], num: int, cluster: str, *, clean: bool) -> list[RowSums]:
    """The sums of each k and model, model by model for the first k, then for the next, in ROWS and then the mirrors of _MIRRORED.

    `scores`: those of `num` models with the full context, the reference first, then of the same with each k. NLLs are those of the
    reference and of the model with the full context, then of both with the last ids.
    """
    clusters, bounds = Clusters(tokens, cluster), {"gains": GAINS, "alpha": ALPHA, "beta": BETA}
    pairs = [(0, model, start, start + model) for start in range(num, len(scores), num) for model in range(1, num)]
    sums = []
    for found in answers([Question("sum_by_gain", bounds, nlls) for nlls in pairs], batches(tokens, scores, cluster=cluster, clean=clean)):
        marks = [found[name].to_numpy().astype(np.int64) for name in ("kind", "reference_gains", "is_key", "model_gains")]
        sums.append(row_sums(found, np.ravel_multi_index(marks, _SHAPE), _unions(), clusters))
    return sums


def _unions() -> np.ndarray:
    """The codes of each of ROWS, then those of the mirrors of _MIRRORED, in which the model gains: bool (k, K)."""
    kind, reference_gains, is_key, model_gains = np.unravel_index(np.arange(np.prod(_SHAPE)), _SHAPE)
    of_class = {name: kind == number for number, name in enumerate(CLASSES)} | {ALL: kind >= 0, KEY_TOKENS: is_key == 1}
    columns = [of_class[name] if gains is None else of_class[name] & (reference_gains == gains) for name, gains in ROWS]
    return np.stack([*columns, *(of_class[ROWS[place][0]] & (model_gains == 1) for place in _MIRRORED)], axis=1)


def _ratios(sums: np.ndarray) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The sums whose ratio each figure is, (..., ROWS): means per token in nats, and shares of the whole gap; of `sums` (5, ..., K).

    Only rows of _MIRRORED have a `mirror_share`: the sum of G(model) - G(ref) over tokens where the model gains.
    """
    tokens, reference, model, short_reference, short_model = sums[..., : len(ROWS)]
    far = (short_reference - reference) - (short_model - model)
    of_mirrors = sums[..., len(ROWS) :]
    mirror = np.full(far.shape, np.nan)
    mirror[..., _MIRRORED] = (of_mirrors[4] - of_mirrors[2]) - (of_mirrors[3] - of_mirrors[1])
    whole = np.broadcast_to((model - reference)[..., :1], far.shape)
    parts = (model - reference, short_reference - reference, short_model - model, short_model - short_reference, far)
    return dict(zip(_MEANS, [(part, tokens) for part in parts], strict=True)) | {
        "gap_share": (model - reference, whole),
        "far_share": (far, whole),
        "mirror_share": (mirror, whole),
    }


def _figures(sums: np.ndarray) -> dict[str, np.ndarray]:
    """`_ratios` of `sums` (5, ..., K); NaN without tokens (except mirrors, which are of others), or without a gap."""
    ratios, has_tokens = _ratios(sums), sums[0][..., : len(ROWS)] > 0
    with np.errstate(divide="ignore", invalid="ignore"):
        return {
            name: np.where((whole != 0) & (has_tokens | (name == "mirror_share")), part / whole, np.nan)
            for name, (part, whole) in ratios.items()
        }


def _table(pair: RowSums, sampled: np.ndarray) -> list[dict[str, Any]]:
    """The rows of one model and one k; `sampled` (5, num_resamples, K)."""
    shown, figures = pair.at(np.arange(len(ROWS))), _figures(pair.totals)
    sizes = shown.effective, shown.freedom
    smaller = [np.minimum(of, of[0]) for of in sizes]  # of a share: its row's, or those of all tokens
    in_cluster, columns = _ratios(pair.by_group), dict[str, np.ndarray]()
    for name, samples in _figures(sampled).items():
        effective, freedom = sizes if name in _MEANS else smaller
        columns |= estimates(name, figures[name], samples, effective, np.minimum(freedom, freedom_of_ratio(*in_cluster[name])))
    columns |= {"ci_low": columns.pop("gap_share_ci_low"), "ci_high": columns.pop("gap_share_ci_high")}
    columns |= {"clusters": shown.clusters, "effective_clusters": shown.effective}
    keys: dict[str, Sequence[Any]] = {"slice": [name for name, _ in ROWS], "reference_gains": [gains for _, gains in ROWS]}
    return gap_rows({**keys, **columns}, shown, shown.totals[:, :1], 1)


def in_context_scores(tokens: Path, scores: Mapping[str, Path], *, cluster: str = "document", clean: bool = False) -> dict[str, Any] | None:
    """For each model the mean NLL at position `late` less that at `early`, in nats, over the sequences that have both.

    `late` is LATE, or the last position of shorter sequences: the figure is then not the paper's, and comparable only among models on
    the same sequences. Intervals by `cluster`. None where sequences are shorter than twice EARLY, or none is whole.
    Returns `early`, `late`, `sequences`, and under `models` by name `score`, `ci_low`, `ci_high`.
    """
    labelled = open_tokens(tokens)
    late = min(LATE, labelled.seq_len)
    if late < 2 * EARLY:
        return None
    opened = [open_scores(path, labelled) for path in scores.values()]
    question = Question("sum_early_late", {"early": EARLY, "late": late})
    [found] = answers([question], batches(labelled, opened, ["sequence"], cluster=cluster, clean=clean))
    sums = row_sums(found, found["is_late"].to_numpy().astype(np.int64), np.eye(2), Clusters(labelled, cluster))
    is_there = np.asarray(sums.tokens.any(axis=1))
    if not is_there.any():
        return None
    [drawn] = resampled([sums.of_groups(is_there)])
    low, high = expanded_interval(_late_less_early(drawn).T, sums.effective.min(), sums.freedom.min())
    ends = zip(scores, _late_less_early(sums.totals), low, high, strict=True)
    models = {name: {"score": float(value), "ci_low": number_or_none(a), "ci_high": number_or_none(b)} for name, value, a, b in ends}
    return {"early": EARLY, "late": late, "sequences": int(sums.tokens[:, 1].sum()), "models": models}


def _late_less_early(sums: np.ndarray) -> np.ndarray:
    """The mean NLLs of late tokens less those of early ones, (m, ...), of tokens and NLLs of both (1 + m, ..., 2)."""
    with np.errstate(divide="ignore", invalid="ignore"):
        means = sums[1:] / sums[0]
    found: np.ndarray = means[..., 1] - means[..., 0]
    return found


_NAMES = dict(zip(CLASSES, ("AR hit", "repeated", "new"), strict=True))


_GAINS = {
    "model": cells.name("model"),
    "last": cells.number("last"),
    "gain": cells.number("gain_model", ".3f"),
    "far share": cells.valid(cells.share("far_share")),
    "95 % interval": cells.share_interval("far_share_ci_low", "far_share_ci_high"),
}


def gains_table(by_context: pl.DataFrame, in_context: Mapping[str, Any] | None) -> Table:
    """The reference and each model, for each number of last ids: gain, the two gaps, LongPPL."""
    found, models, lasts = _cells(by_context)
    reference, rows = by_context["reference"][0], []
    for last in lasts:
        whole, key = found[models[0], last, ALL, None], found[models[0], last, KEY_TOKENS, None]
        rows.append(
            [reference, f"{last:,}", or_dash(whole["gain_reference"], ".3f"), "", "reference", or_dash(key["ppl_reference"], ",.2f")]
        )
        for model in models:
            whole, key = found[model, last, ALL, None], found[model, last, KEY_TOKENS, None]
            rows.append([*(cell(whole) for cell in _GAINS.values()), or_dash(key["ppl_model"], ",.2f")])
    strides = by_context.select("last", "stride").unique().sort("last").rows()
    windows = ", ".join(f"{ids:,} to {ids + stride - 1:,}" if stride > 1 else f"{ids:,}" for ids, stride in strides)
    keys = " / ".join(f"{found[models[0], last, KEY_TOKENS, None]['tokens']:,}" for last in lasts)
    caption = (
        f"Gain: NLL with the last ids alone ({windows} of them) less NLL with the full context. The gap to the reference is that with the "
        "last ids alone plus the difference in gain; far share: that difference over the gap. LongPPL: perplexity of the "
        f"reference's key tokens ({keys}): with the full context their NLL is less than {-BETA:g}, and by more than {ALPHA:g} lower."
        f"{_leads(found, models, lasts)}"
    )
    return Table(
        "What is gained from context further back than the last ids, in nats per token, and that part of the gap",
        [*_GAINS, "LongPPL"],
        rows,
        caption="\n".join(line for line in (caption, _in_context([reference, *models], in_context)) if line),
    )


_FAR = {
    "model": cells.name("model"),
    "last": cells.number("last"),
    "class": lambda row: _NAMES[row["slice"]],
    "tokens": cells.share("share_of_tokens", 2),
    "far share": cells.valid(cells.share("far_share")),
    "95 % interval": cells.share_interval("far_share_ci_low", "far_share_ci_high"),
}
_WHERE_THE_REFERENCE_GAINS = {"gains": cells.valid(cells.share("far_share")), "mirror": cells.valid(cells.share("mirror_share"))}


def far_table(by_context: pl.DataFrame) -> Table:
    """Where the far gap is: each model's share by class, and, with its mirror, where the reference gains."""
    found, models, lasts = _cells(by_context)

    def row_of(model: str, last: int, name: str) -> list[str]:
        row, gaining = found[model, last, name, None], found[model, last, name, True]
        return [cell(row) for cell in _FAR.values()] + [cell(gaining) for cell in _WHERE_THE_REFERENCE_GAINS.values()]

    return Table(
        "The far gap by class of token, as a share of the whole gap",
        [*_FAR, *_WHERE_THE_REFERENCE_GAINS],
        [row_of(model, last, name) for last in lasts for model in models for name in CLASSES],
        caption="Every token is an AR hit, another that repeats a bigram of its context, or new, which is what bigrams miss. Gains: the "
        f"share in those on which the reference gains at least {GAINS:g} nat. They are chosen by its own figures, so it does better on "
        f"them also by chance. Mirror: that share if the models traded places.{_leads(found, models, lasts)}",
    )


def _leads(found: Cells, models: Sequence[str], lasts: Sequence[int]) -> str:
    """Which of the models have shares of a lead, after a space; empty if none has."""
    wholes = [found[model, lasts[0], ALL, None] for model in models]
    return shares_of_leads(whole["model"] for whole in wholes if not whole["void"] and whole["delta_nll"] < 0)


def _in_context(names: Sequence[str], in_context: Mapping[str, Any] | None) -> str | None:
    """A sentence with every model's in-context-learning score; None if there is none."""
    if in_context is None:
        return None
    late, early = in_context["late"], in_context["early"]
    what = "In-context-learning score" if late == LATE else f"Like the in-context-learning score, which is of position {LATE}"
    told = ", ".join(f"{name} {_with_ends(in_context['models'][name])}" for name in names)
    return f"{what}: NLL at position {late} less that at position {early}, of {counted(in_context['sequences'], 'sequence')}: {told}."


def _with_ends(found: Mapping[str, Any]) -> str:
    score, low, high = found["score"], found["ci_low"], found["ci_high"]
    return f"{score:.2f}" if low is None or high is None else f"{score:.2f} ({low:.2f} to {high:.2f})"


def _cells(by_context: pl.DataFrame) -> tuple[Cells, list[str], list[int]]:
    """(model, last, slice, reference_gains) -> row; the models and the numbers of last ids, in their order."""
    rows = by_context.to_dicts()
    found = {(row["model"], row["last"], row["slice"], row["reference_gains"]): row for row in rows}
    return found, list(dict.fromkeys(row["model"] for row in rows)), list(dict.fromkeys(row["last"] for row in rows))
