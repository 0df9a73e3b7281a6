"""The sections of a page: a comparison's results, its tokens, recall evaluations, MQAR, a profile, and how it was measured.

And where each model loses most: the AR hits that cost it most, in their context, and the documents.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import shown_tables
from recallkit.display.cells import DASH, percent
from recallkit.display.charts import shorten, specification
from recallkit.display.exports import compact_json
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import is_void
from recallkit.recall.samples import read_samples
from recallkit.registry import resolve
from recallkit.report import markup, words
from recallkit.report.markup import Html, Section, facts_list, notes, tag, text
from recallkit.storage import artifacts
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.view import Causal
    from recallkit.display.charts import Figure, Style
    from recallkit.display.exports import Look
    from recallkit.recall.tables import RecallTables
    from recallkit.report.excerpts import Place, TokenView


def pictures(figures: Sequence[Figure], styles: Mapping[str, Style]) -> str:
    """Figures, side by side if there is room; `styles` are those of all models of the page."""
    return tag("div", *(_picture(figure, styles) + "\n" for figure in figures), class_="pictures") if figures else ""


def _picture(figure: Figure, styles: Mapping[str, Style]) -> str:
    """A figure; one of several plots is as wide as the page."""
    spec = compact_json(specification(figure, styles, on_page=True))
    kind = {"class_": "broad"} if "facet" in figure.spec else {}
    parts = (
        tag("h3", text(figure.title)),
        tag("div", class_="chart", aria_label=figure.title),
        markup.data(f"specification-{figure.name}", spec),
    )
    return tag("figure", *parts, tag("figcaption", text(figure.caption)), id=f"figure-{figure.name}", **kind)


# ------------------------------------------------------------------------------------------------------ the comparison


def figures_section(figures: Sequence[Figure], styles: Mapping[str, Style]) -> Section:
    """The charts of a comparison: what state costs if that was asked, else that by training frequency (Zoology's figure 1) first."""
    first = next((figure for figure in figures if figure.name in ("price", "by_count")), None)
    ordered = sorted(figures, key=lambda figure: figure is not first)
    return Section("figures", "What recall and the gap depend on", "\n".join(_first_and_others(ordered, styles)))


def tables_section(comparison: Comparison, causal: Causal) -> Section:
    """Every table of a comparison; `causal` is the causal recall of its models, where that is known."""
    shown = shown_tables(comparison.tables, comparison.manifest, causal)
    return Section("tables", "Tables", "\n".join(map(markup.titled_table, shown.values())))


def _first_and_others(figures: Sequence[Figure], styles: Mapping[str, Style]) -> list[str]:
    """The first figure in the width of the page, and the others side by side."""
    return [tag("div", pictures(figures[:1], styles), class_="first"), pictures(figures[1:], styles)]


def method_section(comparison: Comparison, labels: Mapping[str, Any] | None) -> Section:
    """How it was measured, and the commands that reproduce it. `labels`: the slices' manifest, if they are available."""
    facts = {**words.method(comparison), "Files read": words.files(comparison)}
    defined = tag("p", text(words.definition(comparison)))
    again = tag("h3", "Reproduced by") + tag("pre", tag("code", "\n".join(map(_command, words.commands(comparison, labels)))))
    return Section("method", "How it was measured", f"{defined}\n{facts_list(facts)}\n{again}")


def _command(command: str) -> str:
    """A command, whose line may break between its words, never within an option."""
    return " ".join(tag("span", text(word)) for word in command.split(" "))


# ---------------------------------------------------------------------------------------------------------- the tokens

_KEYS = (
    ("← →", "token"),
    ("↑ ↓", "line"),
    ("Home", "first"),
    ("End", "last"),
    ("n", "next AR hit"),
    ("p", "previous one"),
    ("e", "earlier occurrence"),
    ("Esc", "close the tip"),
)


def token_section(view: TokenView) -> Section:
    """The text that models were scored on, token by token."""
    keys = " · ".join(f"{tag('kbd', text(key))} {text(what)}" for key, what in _KEYS)
    intro = (
        "Each token is coloured by which model predicts it, that is, ranks it first, or by how far the two NLLs are apart. ",
        tag("span", "Underlined", class_="sample hit"),
        " are AR hits, ",
        tag("span", "dotted", class_="sample repeated"),
        " are other tokens of repeated bigrams, which were too frequent in training to be AR hits. ",
        "Point at a token, or move to it, to highlight the latest earlier occurrence of its bigram and to show each model's NLL "
        "(negative log-likelihood, in nats) and the token's rank in its prediction, 0 being the first.",
    )
    parts = (
        tag("p", *intro),
        notes(*_view_notes(view)),
        tag("p", "Keys in the text: ", keys, class_="keys"),
        tag("div", id="view", hidden=""),
        markup.data("excerpts", view.data),
    )
    return Section("tokens", "The text, token by token", "\n".join(parts))


def no_token_section(reason: str) -> Section:
    """Why there is no token view, and what can be done about it."""
    return Section("tokens", "The text, token by token", notes(f"The text is not shown here: {reason}."))


def _view_notes(view: TokenView) -> list[str]:
    """Which part of the text is shown, and notes on models with other tokenizers."""
    parts = "" if view.are_whole else "Parts of "
    lines = [
        f"{parts}{view.sequences:,} of {view.num_sequences:,} sequences are on this page: those of the AR hits on which models lose most"
        f"{', and those asked for' if view.asked else ''}. Others: recallkit report DIR --sequence N, or --document N."
    ]
    lines = lines if view.sequences < view.num_sequences or not view.are_whole else []
    if view.asked_shown < view.asked:
        lines.append(f"Of {view.asked:,} that were asked for, the first {view.asked_shown:,} are here; the page has room for no more.")
    lines += [
        f"{name} has another tokenizer: it counts as right if all of its tokens that end in a token were ranked first; if "
        f"its tokens do not begin and end with that token, this is unknown."
        for name in view.other_tokenizers
    ]
    if not view.has_bytes:
        lines.append("Pieces of this tokenizer are not bytes of the text and are shown as written in its vocabulary.")
    return lines


# ------------------------------------------------------------------------------------------------------- other results


def look_of(kind: str, folder: Path) -> Look:
    """A result of this kind as people see it."""
    look: Look = resolve({name: of.look for name, of in KINDS.items()}, kind, "kind of result")(folder)
    return look


def sections_of(kind: str, folder: Path, look: Look, styles: Mapping[str, Style], models: Sequence[str] = ()) -> list[Section]:
    """The sections of a result of this kind: the answer, its first figure and table, the others, how it was measured.

    `models`: in this order they are in the tables, too.
    """
    tables = [f"{each.name}.parquet" for each in fields(look.tables)]
    again = tag("dt", "Made again by") + tag("dd", tag("code", _command(look.command), class_="command"))
    version = artifacts.read_manifest(folder / f"{kind}.parquet").get("recallkit_version", "")
    read = {"Program": f"recallkit {version}".rstrip(), "Files read": ", ".join(dict.fromkeys([f"{kind}.parquet", *tables, *look.files]))}
    facts = tag("div", facts_list({**look.method, **read}, *([again] if look.command else [])), class_="made")
    opening = tag("p", text(look.answer), class_="answer") if look.answer else ""
    first, *others = [markup.titled_table(_ordered(table, models)) for table in look.shown.values()] or [""]
    drawn = _first_and_others(look.figures(), styles)
    shown = [first, *drawn] if kind in _TABLE_FIRST else [drawn[0], first, drawn[1]]
    samples = [_samples_section(folder, look.tables)] if kind == "recall" else []
    return [Section(kind, KINDS[kind].title, "\n".join(filter(None, [*shown, *others, facts])), opening), *samples]


_TABLE_FIRST = ("recall",)
"""Kinds of results whose table of models and tasks is the answer; that of others is a chart."""


def _ordered(table: Table, models: Sequence[str]) -> Table:
    """The table with its rows in the order of `models`, if each is of one of them."""
    places = {model: place for place, model in enumerate(models)}
    if not {row[0] for row in table.rows} <= places.keys():
        return table
    return replace(table, rows=sorted(table.rows, key=lambda row: places[row[0]]))


def _samples_section(folder: Path, tables: RecallTables) -> Section:
    """Prompts of a recall evaluation with each model's generation, or why they are not shown."""
    title = "Prompts and generations"
    try:
        samples = read_samples(folder, tables)
    except UserError as error:
        reason = "; ".join(filter(None, [error.problem, error.remedy]))  # without where: a page names no folder
        return Section("generations", title, notes(f"Not shown here: {reason}."))
    some = f" {samples.shown:,} of {samples.prompts:,} prompts are on this page, drawn at random from each task, model and verdict."
    some *= samples.shown < samples.prompts
    parts = (
        tag(
            "p",
            "A generation is ",
            tag("span", "right", class_="sample right"),
            " if it contains the value, and else ",
            tag("span", "wrong", class_="sample wrong"),
            ", or ",
            tag("span", "cut", class_="sample cut"),
            f" if the value was only in what was cut off the prompt to fit the model's context.{some}",
        ),
        tag("div", id="prompts", hidden=""),
        markup.data("samples", samples.data),
    )
    return Section("generations", title, "\n".join(parts))


_MOST_DOCUMENTS = 10


def losses_section(comparison: Comparison, view: TokenView | None) -> Section:
    """Of every model its places and documents; without the text, which `view` has, its documents alone."""
    parts = []
    for number, model in enumerate(comparison.models, 1):
        places = "" if view is None else _places(comparison, model, view.places[number - 1])
        documents = _documents(comparison, model, set() if view is None else view.documents)
        below = tag("div", documents, class_="documents")
        attributes = {"id": f"losses-{number}", "class_": "of-model", "data_name": shorten(model, 60)}
        parts.append(tag("div", places, below, **attributes))
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
