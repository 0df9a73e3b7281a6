"""What models gain from far context, as tables: of all tokens, and by class; the in-context-learning score in a sentence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.attribution.context_gain import ALL, ALPHA, BETA, CLASSES, GAINS, KEY_TOKENS, LATE
from recallkit.display import cells
from recallkit.display.cells import counted, or_dash, percent, shares_of_leads
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import polars as pl

    from recallkit.display.cells import Cell

    Cells = dict[tuple[str, int, str, bool | None], dict[str, Any]]

_NAMES = dict(zip(CLASSES, ("AR hit", "other repeated", "not repeated"), strict=True))


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


def far_table(by_context: pl.DataFrame) -> Table:
    """Where the far gap is: each model's share by class, and, with its mirror in brackets, where the reference gains."""
    found, models, lasts = _cells(by_context)
    classes = [(name, gains) for name in CLASSES for gains in (None, True)]
    cells_of: dict[str, Cell] = {"share of tokens": cells.share("share_of_tokens", 2), "gain, nats": cells.number("gain_reference", ".3f")}

    def rows_of(last: int) -> list[list[str]]:
        ours = {name: [cell(found[models[0], last, *of]) for of in classes] for name, cell in cells_of.items()}
        far = {model: [_far(found[model, last, *of]) for of in classes] for model in models}
        return [[name, f"{last:,}", *row] for name, row in {**ours, **far}.items()]

    return Table(
        "The far gap by class of token, as a share of the whole gap",
        ["model", "last", *(f"{_NAMES[name]}{', gains' if gains else ''}".replace(" ", "\n") for name, gains in classes)],
        [row for last in lasts for row in rows_of(last)],
        caption="Gain: the reference's, in nats per token. Every token is an AR hit, other repeated or not repeated; the last is what "
        f"bigrams miss. Gains: tokens among them on which the reference gains at least {GAINS:g} nat. They are chosen by its own figures, "
        "so that it does better on them also by chance: in brackets the mirror, the share if the models traded places."
        f"{_leads(found, models, lasts)}",
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


@cells.valid
def _far(row: Mapping[str, Any]) -> str:
    """A far share with its mirror: `24.1 % (3.0)`."""
    share, mirror = row["far_share"], row["mirror_share"]
    return percent(share) if share is None or mirror is None else f"{percent(share)} ({100 * mirror:.1f})"
