"""What a comparison answers, in a sentence or two: how much of a gap, or of a lead, lies in AR hits; and the figures in it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import cells
from recallkit.display.cells import or_dash, percent, share_range
from recallkit.measure.shares import is_void

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Totals = Mapping[tuple[str, str], Mapping[str, Any]]
    """The rows of all sources by model and slice."""
    Recalled = Mapping[str, Mapping[str, Any]]
    """By model how much of its gap would be gone if neither could recall: `recall_share`, and its interval."""


def ppl(value: float | None) -> str:
    """A perplexity; a dash if there is none."""
    return or_dash(value, PPL)


def times(ratio: float | None) -> str:
    """An enrichment: 7.92 -> 7.9; a dash if there is none."""
    return or_dash(ratio, ".1f")


PPL = ",.2f"
gap_share = cells.valid(cells.share("gap_share"))
"""A row's share of the gap."""
interval = cells.share_interval("ci_low", "ci_high")
"""Its 95 % interval."""
enriched = cells.valid(cells.number("enrichment", "z.1f"))
"""Its ratio to the share of tokens."""


def in_short(reference: str, models: Sequence[str], totals: Totals, recalled: Recalled, *, in_bits: bool = False) -> str:
    """The answer as a terminal has it: of several models the range of their shares, or else of the nearest and the farthest.

    `in_bits`: bits per byte, if they are known, in place of perplexities, which are per token of the reference's.
    """
    said = headline(reference, models, totals) or answer(reference, models, totals, in_bits=in_bits)
    return f"{said}{_recalled(models, totals, recalled)}"


def headline(reference: str, models: Sequence[str], totals: Totals) -> str:
    """The range of the shares, significantly different from zero, of the models that are behind the reference; "" if there are not two."""
    hits = {model: totals[model, "ar_hit"] for model in models}
    behind = [
        row
        for model, row in hits.items()
        if totals[model, "all"]["delta_nll"] > 0 and not is_void(row) and (row["ci_low"] or 0) > 0 and row["gap_share"] <= 1
    ]
    if len(behind) < 2:
        return ""
    shares, tokens = sorted(row["gap_share"] for row in behind), behind[0]["share_of_tokens"]
    whose = f"{len(behind):,} models" if len(behind) == len(hits) else f"{len(behind):,} of {len(hits):,} models"
    ratios = " to ".join(dict.fromkeys([times(shares[0] / tokens), times(shares[-1] / tokens)]))
    return (
        f"{share_range(shares)} of what {whose} lose to {reference} lies in the {percent(tokens, 2)} of tokens that are AR hits: {ratios} "
        "times their share."
    )


def _recalled(models: Sequence[str], totals: Totals, recalled: Recalled) -> str:
    """How much of the gaps of models that are behind would be gone without recall, where the interval is above 0; after a space."""
    behind = {model: recalled[model] for model in models if model in recalled and totals[model, "all"]["delta_nll"] > 0}
    shown = {model: row for model, row in behind.items() if (row["recall_share_ci_low"] or 0) > 0 and row["recall_share"] <= 1}
    shares = sorted(row["recall_share"] for row in shown.values())
    if not shares:
        return ""
    if len(shares) == 1:
        return f" If neither could recall by association in AR hits, {percent(shares[0])} of the gap of {next(iter(shown))} would be gone."
    return (
        f" If no model could recall by association in AR hits, {share_range(shares)} of the gaps of {len(shares):,} models would be gone."
    )


def answer(reference: str, models: Sequence[str], totals: Totals, *, in_bits: bool = False) -> str:
    """A sentence on the model nearest to the reference, and one on the farthest; `in_bits` as for `in_short`."""
    placed = sorted(models, key=lambda model: abs(totals[model, "all"]["delta_nll"]))
    if len(placed) == 1:
        return _claim(placed[0], totals, in_bits=in_bits)
    places = {placed[0]: "Nearest to", placed[-1]: "Farthest from"}
    if len({abs(totals[model, "all"]["delta_nll"]) for model in places}) == 1:
        return " ".join(_claim(model, totals, in_bits=in_bits) for model in places)
    return " ".join(f"{place} {reference} is {_claim(model, totals, in_bits=in_bits)}" for model, place in places.items())


def _claim(model: str, totals: Totals, *, in_bits: bool) -> str:
    """The share of one model's gap that lies in AR hits, or that it means nothing."""
    whole, hits = totals[model, "all"], totals[model, "ar_hit"]
    quality = f"perplexity {ppl(whole['ppl_model'])} against {ppl(whole['ppl_reference'])}"
    if in_bits and whole["bpb_reference"] is not None:
        quality = f"{whole['bpb_model']:.3f} bits per byte against {whole['bpb_reference']:.3f}"
    subject = f"{model} ({quality})"
    gap = "lead" if whole["delta_nll"] < 0 and not is_void(whole) else "gap"
    if is_void(hits):
        return f"{subject}: a share of this {gap} means nothing ({hits['note']})."
    share, bounds = percent(hits["gap_share"]), f"95 % interval {interval(hits)}" if hits["ci_low"] is not None else ""
    if 0 <= hits["gap_share"] <= 1:
        enriched = f", {times(hits['enrichment'])} times their share of the tokens" if hits["enrichment"] is not None else ""
        return f"{subject}: {share}{bounds and f' ({bounds})'} of this {gap} lies in AR hits{enriched}."
    return f"{subject}: {_beyond(hits, gap)} (share {share}{bounds and f', {bounds}'})."


def _beyond(hits: Mapping[str, Any], gap: str) -> str:
    """The meaning of a share below 0 or above 1: which model is better differs between the two slices, if the interval says so, too."""
    low, high = (hits["gap_share"] if hits[name] is None else hits[name] for name in ("ci_low", "ci_high"))
    side = f"it is {'better' if gap == 'gap' else 'worse'} than the reference"
    if hits["gap_share"] < 0:
        return f"none of this {gap} lies in AR hits; there {side}" if high < 0 else f"no part of this {gap} is shown to lie in AR hits"
    return (
        f"all of this {gap} lies in AR hits; on the other tokens {side}" if low > 1 else f"no part of this {gap} is shown to lie elsewhere"
    )
