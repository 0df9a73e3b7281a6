"""Where each model loses most against the reference: the AR hits that cost it most, in their context, and the documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display.cells import DASH, percent
from recallkit.display.charts import shorten
from recallkit.display.tables import Table
from recallkit.measure.shares import is_void
from recallkit.report import markup
from recallkit.report.markup import Html, Section, notes, tag, text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from recallkit.attribution.comparison import Comparison
    from recallkit.report.excerpts import Place, TokenView

_MOST_DOCUMENTS = 10


def losses_section(comparison: Comparison, view: TokenView | None) -> Section:
    """Of every model its places and documents; without the text, which `view` has, its documents alone."""
    parts = []
    for number, model in enumerate(comparison.models, 1):
        places = "" if view is None else tag("div", _places(comparison, model, view.places[number - 1]), id=f"places-{number}")
        documents = tag("div", _documents(comparison, model, set() if view is None else view.documents), id=f"documents-{number}")
        parts.append(tag("div", places, documents, class_="of-model", data_name=shorten(model, 60)))
    return Section("losses", "Where each model loses most", "\n".join(parts))


def _places(comparison: Comparison, model: str, places: Sequence[Place]) -> str:
    """The AR hits of all the text on which a model's NLL is most above the reference's."""
    reference = comparison.reference
    if not places:
        return tag("h3", text(f"The AR hits on which {model} loses most")) + notes(f"{model} is behind {reference} on no AR hit.")
    hits = comparison.totals[model, "ar_hit"]
    lost = hits["delta_nll"] * hits["tokens"]
    cost = sum(place.lost for place in places)
    told = f"Of {hits['tokens']:,} AR hits; NLLs in nats."
    if lost > 0 and cost < lost:
        told += f" These {len(places)} are {percent(cost / lost)} of the {lost:,.1f} nats that {model} loses on AR hits."
    if not all(place.is_shown for place in places):
        told += " Those without a link are not on this page: recallkit report DIR --sequence N adds their sequence."
    rows = [[_in_context(place), f"{place.lost:.2f}", *(cell(place) for cell in _OF_PLACE.values())] for place in places]
    title = f"The {len(rows)} AR hits on which {model} loses most against {reference}"
    return markup.titled_table(Table(title, ["AR hit in its context", "NLL more", *_OF_PLACE], rows, told))


_OF_PLACE: Mapping[str, Callable[[Place], str]] = {
    "reference": lambda place: f"{place.row['nll_0']:.2f}",
    "model": lambda place: f"{place.row[f'nll_{place.model}']:.2f}",
    "it predicts": lambda place: "the token" if place.row[f"right_{place.model}"] else place.row[f"predicted_{place.model}"] or DASH,
    "tokens back": lambda place: f"{place.row['distance']:,}",
    "training count": lambda place: f"{place.row['train_count']:,}",
    "document": lambda place: f"{place.row['document']:,}",
    "sequence": lambda place: f"{place.row['sequence']:,}",
}
"""Columns of places beside the text and what the model loses."""


def _in_context(place: Place) -> str:
    token = place.row["text"]
    is_apart = place.before[-1:].isspace() or token[:1].isspace()
    words = tag("bdi", text(place.before), " " * is_apart, tag("mark", text(token if token.strip() else repr(token)[1:-1])))
    if not place.is_shown:
        return Html(words)
    return Html(tag("a", words, href="#tokens", data_sequence=place.row["sequence"], data_position=place.row["position"]))


def _documents(comparison: Comparison, model: str, shown: Collection[int]) -> str:
    """The documents that add most to a model's gap, and all others together: the rows add up to the gap."""
    import polars as pl

    frame = comparison.tables.by_document.filter(model=model).with_columns(
        all=pl.col("nats_model") - pl.col("nats_reference"), hits=pl.col("ar_nats_model") - pl.col("ar_nats_reference")
    )
    whole, gap = float(frame["all"].sum()), comparison.totals[model, "all"]
    if not (frame["all"].abs().sum() or frame["hits"].abs().sum()):
        heading = tag("h3", text(f"The documents that add most to the gap of {model}"))
        return heading + notes(f"{model} predicts every document as {comparison.reference} does.")
    sign = -1 if whole < 0 and not is_void(gap) else 1
    called = "lead" if sign < 0 else "gap"
    ordered = frame.sort(sign * pl.col("all"), "document", descending=[True, False])
    first, others = ordered.head(_MOST_DOCUMENTS), ordered.tail(-_MOST_DOCUMENTS)
    sums = ("tokens", "ar_hits", "hits", "all")

    def figures(row: dict[str, Any]) -> list[str]:
        share = DASH if is_void(gap) else percent(row["all"] / whole)
        return [f"{row['tokens']:,}", f"{row['ar_hits']:,}", f"{row['hits']:z,.1f}", f"{row['all']:z,.1f}", share]

    rows = [[_document(row["document"], shown), row["source"], *figures(row)] for row in first.iter_rows(named=True)]
    if len(others):
        together = tag("span", f"the {len(others):,} others", class_="rest")
        rows.append([Html(together), DASH, *figures({name: others[name].sum() for name in sums})])
    told = f"Nats are the model's less the reference's, summed; all rows add up to {whole:z,.1f}."
    if shown and not all(document in shown for document in first["document"]):
        told += " Documents without a link are not on this page: recallkit report DIR --document N adds one."
    heads = ["document", "source", "tokens", "AR hits", "nats on AR hits", "nats on all tokens", f"share of the {called}"]
    return markup.titled_table(Table(f"The documents that add most to the {called} of {model}", heads, rows, told))


def _document(number: int, shown: Collection[int]) -> str:
    return Html(tag("a", f"{number:,}", href="#tokens", data_document=number)) if number in shown else f"{number:,}"
