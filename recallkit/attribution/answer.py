"""What a comparison answers: what is retained of the reference's recall, how far behind on AR
hits, and where the gap lies."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import bounds, extremes, or_dash, percent, some_of
from recallkit.measure.shares import is_void

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Row = Mapping[str, Any]
    Totals = Mapping[tuple[str, str], Row]
    """The rows of all sources by model and slice."""

PPL = ",.2f"
MOST_NAMED = 4
"""Models that a sentence names."""


def ppl(value: float | None) -> str:
    """A perplexity; a dash if there is none."""
    return or_dash(value, PPL)


def short_percent(share: float) -> str:
    """0.1097 -> 11 %: a share in a sentence, of which the first two digits matter."""
    return f"{100 * share:,.0f} %" if abs(share) >= 0.0995 else percent(share)


def in_short(reference: str, models: Sequence[str], totals: Totals) -> str:
    """The answer as terminal and page have it: of one model in full, of several the range over
    all of them."""
    hits = totals[models[0], "ar_hit"]
    if not hits["tokens"]:
        rows = {model: totals[model, "all"] for model in models}
        one = f"{models[0]} {_behind(rows[models[0]], reference)}"
        said = one if len(models) == 1 else _behind_range(_models(len(models)), rows)
        missing = (
            "No token of this text is an AR hit, so recall of rare bigrams cannot be measured."
        )
        if not is_of_rare(hits):
            missing = (
                "No token of this text repeats a bigram of its context, so recall cannot be "
                "measured."
            )
        return f"{missing} Over all tokens, with {reference} as the reference, {said}."
    if len(models) == 1:
        return _of_one(reference, models[0], totals)
    return _of_several(reference, models, totals)


# ------------------------------------------------------------------------------------------- of one


def _of_one(reference: str, model: str, totals: Totals) -> str:
    hits = totals[model, "ar_hit"]
    recall = (
        f"{_first(reference, hits)}, {model} with {_twice(hits, 'model')}: "
        f"{_retains(model, reference, hits)}."
    )
    return f"{recall} {_on_hits(hits)}, {_of_hits(reference, model, totals)}."


def is_of_rare(hits: Row) -> bool:
    """Whether the tokens of a row are AR hits; without training counts all repeated bigrams take
    their place."""
    return bool(hits["slice"] == "ar_hit")


def _called(hits: Row) -> str:
    return "AR hits" if is_of_rare(hits) else "repeated bigrams"


def _first(reference: str, hits: Row) -> str:
    """What the reference does with AR hits."""
    returned = _twice(hits, "reference", "at its first occurrence")
    bigram = "a rare bigram" if is_of_rare(hits) else "a bigram"
    return f"When {bigram} returns, {reference} predicts its last token with probability {returned}"


def _on_hits(hits: Row) -> str:
    return f"On these {_called(hits)} ({percent(hits['share_of_tokens'])} of tokens)"


def _twice(hits: Row, side: str, where: str = "") -> str:
    """The mean probability of AR hits, and that of the first occurrences of their bigrams: `45 %
    (4.1 % at ...)`."""
    first = " ".join(filter(None, [short_percent(hits[f"first_p_{side}"]), where]))
    return f"{short_percent(hits[f'p_{side}'])} ({first})"


def _retains(model: str, reference: str, hits: Row) -> str:
    """How much of the reference's recall a model retains, or why that is not known."""
    if hits["retained"] is None:
        if hits["gain_reference_ci_low"] is None:
            return "there are too few documents to say what is retained"
        gain = (
            f"{100 * hits['gain_reference']:z.1f} points, "
            f"{_ends(hits, 'gain_reference', 100, 'z.1f')}"
        )
        return (
            f"{reference}'s recall gain is not shown to exceed 0.1 points ({gain}), so there is "
            "no recall to retain"
        )
    return (
        f"{model} retains {short_percent(hits['retained'])} of {reference}'s recall "
        f"({_ends(hits, 'retained', 100, 'z.0f')})"
    )


def _ends(row: Row, name: str, scale: float, form: str) -> str:
    """The 95 % interval of a column, `8 to 15`."""
    return bounds(scale * row[f"{name}_ci_low"], scale * row[f"{name}_ci_high"], form)


def _of_hits(reference: str, model: str, totals: Totals) -> str:
    """How far a model is behind on AR hits, and what part of its gap they and all repeated
    bigrams carry."""
    hits, every, repeated = (totals[model, name] for name in ("ar_hit", "all", "repeated"))
    if is_void(every) or is_void(hits):
        difference = f"Over all tokens the difference is {_nats(every)}"
        return (
            f"{model} {_behind(hits, reference)}. {difference}; no share of it is meaningful: "
            f"{hits['note']}"
        )
    gap = "gap" if every["delta_nll"] > 0 else "lead"
    called = "AR hits" if is_of_rare(hits) else "They"
    carry = (
        f"{called} carry {short_percent(hits['gap_share'])} of its {gap} of "
        f"{abs(every['delta_nll']):.3f} nats per token"
    )
    beside = (
        ""
        if is_void(repeated) or not is_of_rare(hits)
        else f"; all repeated bigrams carry {short_percent(repeated['gap_share'])}"
    )
    return f"{model} {_behind(hits, reference)}. {carry}{beside}"


def _behind(row: Row, reference: str) -> str:
    """`is 3.37 nats behind (3.05 to 3.65)`; `does not differ significantly ...` where the gap of
    these tokens may be zero."""
    delta = row["delta_nll"]
    side = "behind" if delta > 0 else "ahead"
    if row["delta_nll_ci_low"] is None:
        return f"is {abs(delta):.2f} nats {side} (too few documents for an interval)"
    if not row["is_distinct"]:
        return f"does not differ significantly from {reference}: {_nats(row)}"
    low, high = sorted(abs(row[f"delta_nll_ci_{end}"]) for end in ("low", "high"))
    return f"is {abs(delta):.2f} nats {side} ({bounds(low, high)})"


def _nats(row: Row) -> str:
    """A gap per token with its interval: `-0.060 nats per token (-0.370 to 0.230)`."""
    interval = bounds(row["delta_nll_ci_low"], row["delta_nll_ci_high"], "z.3f")
    return f"{row['delta_nll']:z.3f} nats per token" + (
        f" ({interval})" if row["delta_nll_ci_low"] is not None else ""
    )


# --------------------------------------------------------------------------------------- of several


def _of_several(reference: str, models: Sequence[str], totals: Totals) -> str:
    hits = {model: totals[model, "ar_hit"] for model in models}
    first = hits[models[0]]
    return " ".join(
        [
            f"{_first(reference, first)}; {_retained_range(reference, hits)}.",
            f"{_on_hits(first)}, {_behind_range('they', hits)}.",
            _share_range(models, totals),
        ]
    )


def _retained_range(reference: str, hits: Mapping[str, Row]) -> str:
    """What is retained, from the least to the most."""
    retained = {
        model: row["retained"] for model, row in hits.items() if row["retained"] is not None
    }
    if not retained:
        return _retains("none", reference, next(iter(hits.values())))
    return f"{_models(len(hits))} retain {extremes(retained, short_percent)} of this recall gain"


def _behind_range(they: str, rows: Mapping[str, Row]) -> str:
    """How far all models are behind, and of which that is not shown; `they`: how they are
    called."""
    behind = {model: row["delta_nll"] for model, row in rows.items()}
    unresolved = [model for model, row in rows.items() if not row["is_distinct"]]
    said = f"{they} are {extremes(behind, _side)}"
    return said + (f"; not significant for {some_of(unresolved, MOST_NAMED)}" if unresolved else "")


def _side(nats: float) -> str:
    if abs(nats) < 0.005:
        return "level"
    return f"{abs(nats):.2f} nats {'behind' if nats > 0 else 'ahead'}"


def _share_range(models: Sequence[str], totals: Totals) -> str:
    """The shares of all gaps that AR hits carry, those of leads apart, and of which none is
    given."""
    rows = {model: totals[model, "ar_hit"] for model in models}
    void = [model for model, row in rows.items() if is_void(row)]
    known = {model: row["gap_share"] for model, row in rows.items() if model not in void}
    leads = {
        model: share for model, share in known.items() if totals[model, "all"]["delta_nll"] < 0
    }
    gaps = {model: share for model, share in known.items() if model not in leads}
    parts = []
    for shares, what in ((gaps, "gap"), (leads, "lead")):
        if len(shares) == 1:
            [(model, share)] = shares.items()
            parts.append(f"{short_percent(share)} of the {what} of {model}")
        elif shares:
            parts.append(
                f"{extremes(shares, short_percent)} of the {what}s of {len(shares):,} models"
            )
    if parts:
        none = f"; no share is meaningful for {some_of(void, MOST_NAMED)}" if void else ""
        called = "AR hits" if is_of_rare(rows[models[0]]) else "They"
        return f"{called} carry {' and '.join(parts)}{none}."
    alike: dict[str, list[str]] = {}
    for model, row in rows.items():
        alike.setdefault(row["note"], []).append(model)
    reasons = "; ".join(f"{some_of(names, MOST_NAMED)}: {note}" for note, names in alike.items())
    return f"No share of their gaps is meaningful ({reasons})."


def _models(number: int) -> str:
    return f"{number:,} models" if number > 2 else "both models"
