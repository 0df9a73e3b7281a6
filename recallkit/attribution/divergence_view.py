"""Divergences from the reference in a sentence and as tables: a row per model, and by slice with quantiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.divergence import QUANTILES
from recallkit.display import cells
from recallkit.display.cells import bounds, or_dash
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    Slices = Mapping[tuple[str, str], Mapping[str, Any]]
    """The rows of slices, by model and slice."""

_KL, _TIMES = "#.3g", ".2f"
_ROUNDING = 1e-6
"""Nats: two ways of computing the same predictions are so far apart, and a ratio of such divergences says nothing."""
_WHERE_FIRST = "where the bigrams of AR hits first occur"


def in_a_sentence(by_divergence: pl.DataFrame) -> str:
    """How much larger the divergence is per AR hit than where its bigram first occurs, of models of which that is significant.

    If it is of none, that it is not shown to be, and the divergence per token.
    """
    found, models = _slices(by_divergence)
    reference = by_divergence["reference"][0]
    larger = [row for model in models if ((row := found[model, "ar_hit"])["ratio_ci_low"] or 0) > 1 and row["kl"] > _ROUNDING]
    if not larger:
        told = _range([found[model, "all"]["kl"] for model in models], _KL)
        return f"KL divergence from {reference} is {told} nats per token, and not shown to be larger per AR hit than {_WHERE_FIRST}."
    ratios = _range([row["ratio"] for row in larger], ".1f")
    means, firsts = (_range([row[name] for row in larger], _KL) for name in ("kl", "kl_first"))
    whose = f"{len(larger):,} models" if len(larger) == len(models) else f"{len(larger):,} of {len(models):,} models"
    whose = larger[0]["model"] if len(larger) == 1 else whose
    return f"Per AR hit, KL divergence of {whose} from {reference} is {ratios} times that {_WHERE_FIRST}: {means} against {firsts} nats."


def _range(values: Sequence[float], form: str) -> str:
    """The least to the largest, one figure if they read alike."""
    least, most = format(min(values), form), format(max(values), form)
    return least if least == most else f"{least} to {most}"


def divergence_table(by_divergence: pl.DataFrame) -> Table:
    """A row per model: divergence per token, per AR hit and where their bigrams first occur, the ratio, and agreement."""
    found, models = _slices(by_divergence, short=True)
    rows = []
    for model in models:
        whole, hits = found[model, "all"], found[model, "ar_hit"]
        figures = [or_dash(whole["kl"], _KL), or_dash(hits["kl"], _KL), or_dash(hits["kl_first"], _KL), or_dash(hits["ratio"], _TIMES)]
        agreement = [cells.in_percent("agreement")(row) for row in (whole, hits)]
        rows.append([model, *figures, bounds(hits["ratio_ci_low"], hits["ratio_ci_high"]), *agreement])
    return Table(
        f"How far predictions are from those of {by_divergence['reference'][0]}: KL divergence in nats, and agreement in %",
        ["model", "all", "AR\nhits", "first", "ratio", "95 %\ninterval", "agree", "agree,\nAR hits"],
        rows,
        "KL(reference | model), mean per token. First: where the bigrams of AR hits first occur in their sequences, so that nothing can be "
        "recalled; ratio: per AR hit over that. Agree: both rank the same token first.",
        groups=[("", 1), ("KL divergence", 5), ("agreement", 2)],
    )


def slices_table(by_divergence: pl.DataFrame) -> Table:
    """A row per slice and model: the mean divergence with its interval, quantiles, agreement."""
    found, _ = _slices(by_divergence, short=True)
    names = dict.fromkeys(name for _, name in found)
    return Table.of(
        "KL divergence from the reference by slice, nats per token, with quantiles of the tokens",
        {
            "slice": cells.name("slice"),
            "model": cells.name("model"),
            "tokens": cells.share("share_of_tokens", 2),
            "mean": cells.number("kl", _KL),
            "95 % interval": cells.interval("kl", _KL),
            "agree": cells.share("agreement"),
            **dict(zip(("median", "95th", "99th", "largest"), (cells.number(name, _KL) for name in QUANTILES), strict=True)),
        },
        [row for name in names for (_, of), row in found.items() if of == name],
        groups=[("", 3), ("KL divergence", 2), ("", 1), ("percentiles", 4)],
        optional=["tokens", "agree", "largest"],
    )


def _slices(by_divergence: pl.DataFrame, *, short: bool = False) -> tuple[Slices, list[str]]:
    """(model, slice) -> row; and the models, in their order; `short`: as tables name them."""
    rows = by_divergence.filter(by="slice").to_dicts()
    rows = cells.without_zoo(rows) if short else rows
    return {(row["model"], row["slice"]): row for row in rows}, list(dict.fromkeys(row["model"] for row in rows))
