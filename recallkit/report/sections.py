"""The sections of a page: a comparison, its text, other results, and how they were measured.

And where each model loses most: the AR hits that cost it most, in their context, and the documents.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import ComparisonView
from recallkit.display.cells import DASH, counted, percent
from recallkit.display.charts import shorten, specification
from recallkit.display.exports import compact_json
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import is_void
from recallkit.recall.samples import read_samples
from recallkit.registry import resolve
from recallkit.report import markup, words
from recallkit.report.markup import Html, Section, facts_list, notes, tag, text
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.view import Causal
    from recallkit.display.charts import Figure, Style
    from recallkit.display.views import ResultView
    from recallkit.recall.tables import RecallTables
    from recallkit.report.excerpts import Place, TokenView


def pictures(figures: Sequence[Figure], styles: Mapping[str, Style]) -> str:
    """Figures, side by side if there is room; `styles` are those of all models of the page."""
    drawn = [_picture(figure, styles) + "\n" for figure in figures]
    return tag("div", *drawn, class_="pictures") if drawn else ""


def _picture(figure: Figure, styles: Mapping[str, Style]) -> str:
    """A figure; one of several plots is as wide as the page."""
    spec = compact_json(specification(figure, styles, on_page=True))
    kind = {"class_": "broad"} if "facet" in figure.spec else {}
    parts = (
        tag("h3", text(figure.title)),
        tag("div", class_="chart", aria_label=figure.title),
        markup.data(f"specification-{figure.name}", spec),
        tag("figcaption", text(figure.caption)),
    )
    return tag("figure", *parts, id=f"figure-{figure.name}", **kind)


# ---------------------------------------------------------------------------------- the comparison


def figures_section(figures: Sequence[Figure], styles: Mapping[str, Style]) -> Section:
    """The charts of a comparison, first what state costs or that by training frequency."""
    ordered = sorted(figures, key=lambda figure: figure.name not in ("price", "by_count"))
    parts = _first_and_others(ordered, styles)
    is_of_gaps = any(figure.name in ("by_count", "by_threshold") for figure in figures)
    title = "What recall and the gap depend on" if is_of_gaps else "What recall depends on"
    return Section("figures", title, "\n".join(parts))


def tables_section(comparison: Comparison, causal: Causal) -> Section:
    """Every table of a comparison; `causal`: the causal recall of its models, where it is known."""
    tables = ComparisonView(comparison, causal, is_page=True).display_tables
    return Section("tables", "Tables", "\n".join(map(markup.titled_table, tables.values())))


def _first_and_others(figures: Sequence[Figure], styles: Mapping[str, Style]) -> list[str]:
    """The first figure in the width of the page, and the others side by side."""
    first = tag("div", pictures(figures[:1], styles), class_="first")
    return [first, pictures(figures[1:], styles)]


def method_section(comparison: Comparison) -> Section:
    """How it was measured, and the commands that were typed for it."""
    facts = {**words.method(comparison), "Files read": words.files(comparison)}
    parts = [tag("p", text(words.definition(comparison))), facts_list(facts)]
    if commands := "\n".join(map(_command, words.commands(comparison))):
        parts += [tag("h3", "Reproduced by"), tag("pre", tag("code", commands))]
    return Section("method", "How it was measured", "\n".join(parts))


def _command(command: str) -> str:
    """A command, whose line may break between its words, never within an option."""
    return " ".join(tag("span", text(word)) for word in command.split(" "))


# -------------------------------------------------------------------------------------- the tokens

_KEYS = (
    ("← →", "token"),
    ("↑ ↓", "line"),
    ("Home", "first"),
    ("End", "last"),
    ("n", "next underlined one"),
    ("p", "previous one"),
    ("e", "earlier occurrence"),
    ("Esc", "close the tip"),
)


def token_section(view: TokenView, comparison: Comparison) -> Section:
    """The text that models were scored on, token by token."""
    keys = " · ".join(f"{tag('kbd', text(key))} {text(what)}" for key, what in _KEYS)
    others = (
        tag("span", "Dotted", class_="sample repeated"),
        " tokens end other repeated bigrams, which were too frequent in training. ",
    )
    intro = (
        "Colours show which of two models ranks a token first, or how far apart their NLLs are. ",
        tag("span", "Underlined", class_="sample hit"),
        *((" tokens are AR hits. ", *others) if comparison.has_counts else (" tokens end repeated bigrams. ",)),
        "Point at a token, or move to it, to highlight the latest earlier occurrence of its ",
        "bigram and to see each model's NLL (negative log-likelihood, in nats) and the token's ",
        "rank in its prediction, where 0 is the first.",
    )
    parts = (
        tag("p", *intro),
        notes(*_view_notes(view, comparison.hit)),
        tag("p", "Keys in the text: ", keys, class_="keys"),
        tag("div", id="view", hidden=""),
        markup.data("excerpts", view.data),
    )
    return Section("tokens", "The text, token by token", "\n".join(parts))


def no_token_section(reason: str) -> Section:
    """Why there is no token view, and what can be done about it."""
    line = notes(f"The text is not shown here: {reason}.")
    return Section("tokens", "The text, token by token", line)


def _view_notes(view: TokenView, hit: str) -> list[str]:
    """Which part of the text is shown, and notes on models with other tokenizers."""
    lines = []
    if view.sequences < view.num_sequences or not view.are_whole:
        shown = f"{view.sequences:,} of {view.num_sequences:,} sequences"
        parts = "" if view.are_whole else "parts of "
        also = ", and the requested ones" if view.requested else ""
        lines.append(
            f"This page has {parts}{shown}: those with the {hit}s on which models lose most{also}. "
            "To add others: recallkit report DIR --sequence N, or --document N."
        )
    if view.requested_shown < view.requested:
        lines.append(f"Of {view.requested:,} requested sequences only the first {view.requested_shown:,} fit on the page.")
    lines += [
        f"{name} has another tokenizer. It counts as right if it ranked first all of its own tokens "
        "that end in a token; where these do not begin and end with the token, this is unknown."
        for name in view.other_tokenizers
    ]
    if not view.has_bytes:
        lines.append("The entries of this tokenizer are not bytes; they are shown as in its vocabulary.")
    return lines


# ----------------------------------------------------------------------------------- other results


def view_of(kind: str, folder: Path) -> ResultView:
    """A result of this kind as people see it."""
    classes = {name: result.view for name, result in KINDS.items()}
    view: ResultView = resolve(classes, kind, "kind of result")(folder)
    return view


def sections_of(view: ResultView, styles: Mapping[str, Style], models: Sequence[str]) -> list[Section]:
    """A result's answer, its first figure and table, the others, and how it was measured.

    `models`: in this order they are in the tables, too.
    """
    kind = view.kind
    is_recall = kind == "recall"  # its table of models and tasks is the answer, that of others a chart
    version = view.manifest.get("recallkit_version", "")
    files = [f"{name}.parquet" for name in (kind, *(field.name for field in fields(view.tables)))]
    facts = {
        **view.method(),
        "Program": f"recallkit {version}".rstrip(),
        "Files read": ", ".join(dict.fromkeys([*files, *view.files()])),
    }
    command = tag("dd", tag("code", _command(view.command), class_="command"))
    again = [tag("dt", "Reproduced by"), command] if view.command else []
    opening = tag("p", text(view.answer()), class_="answer")
    tables = [markup.titled_table(_ordered(table, models)) for table in view.display_tables.values()]
    drawn = _first_and_others(view.figures(), styles)
    drawn.insert(0 if is_recall else 1, tables[0] if tables else "")
    parts = [*drawn, *tables[1:], tag("div", facts_list(facts, *again), class_="made")]
    samples = [_samples_section(view.folder, view.tables)] if is_recall else []
    return [Section(kind, KINDS[kind].title, "\n".join(filter(None, parts)), opening), *samples]


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
        # Without where: a page names no folder.
        reason = "; ".join(filter(None, [error.problem, error.remedy]))
        return Section("generations", title, notes(f"Not shown here: {reason}."))
    some = ""
    if samples.shown < samples.prompts:
        some = f" This page has {samples.shown:,} of {samples.prompts:,} prompts, drawn at random "
        some += "from each task, model and verdict."
    intro = (
        "A generation is ",
        tag("span", "right", class_="sample right"),
        " if it contains the value, ",
        tag("span", "cut", class_="sample cut"),
        " if the value was only in the part of the prompt that did not fit the model's context, ",
        "and ",
        tag("span", "wrong", class_="sample wrong"),
        f" otherwise.{some}",
    )
    prompts = tag("div", id="prompts", hidden="") + markup.data("samples", samples.data)
    return Section("generations", title, tag("p", *intro) + prompts)


# ------------------------------------------------------------------------- where models lose most

_MOST_DOCUMENTS = 10


def losses_section(comparison: Comparison, view: TokenView | None) -> Section:
    """Of every model its places and documents; without a `view` of the text its documents alone."""
    shown = view.documents if view else ()
    parts = []
    for number, model in enumerate(comparison.models, 1):
        blocks = [_places(comparison, model, view.places[number - 1])] if view else []
        blocks.append(tag("div", _documents(comparison, model, shown), class_="documents"))
        label = shorten(model, 60)
        parts.append(tag("div", *blocks, id=f"losses-{number}", class_="of-model", data_name=label))
    return Section("losses", "Where each model loses most", "\n".join(parts))


def _places(comparison: Comparison, model: str, places: Sequence[Place]) -> str:
    """The AR hits of all the text on which a model's NLL is most above the reference's."""
    reference, what = comparison.reference, comparison.hit
    if not places:
        heading = tag("h3", text(f"The {what}s on which {model} loses most"))
        return heading + notes(f"{model} is not behind {reference} on any {what}.")
    hits = comparison.totals[model, "ar_hit"]
    lost, here = hits["delta_nll"] * hits["tokens"], sum(place.lost for place in places)
    caption = f"Out of {hits['tokens']:,} {what}s; NLLs in nats."
    if 0 < here < lost:
        share = f"{percent(here / lost)} of the {lost:,.1f} nats"
        these = f"These {len(places)} account" if len(places) > 1 else "It accounts"
        caption += f" {these} for {share} that {model} loses on {what}s."
    if not all(place.is_shown for place in places):
        caption += " Hits without a link are not on this page: "
        caption += "recallkit report DIR --sequence N adds their sequence."
    columns = {f"{what} in its context": _in_context, **_OF_PLACE}
    if not comparison.has_counts:
        del columns["training count"]
    rows = [[cell(place) for cell in columns.values()] for place in places]
    title = f"The {counted(len(rows), what)} on which {model} loses most against {reference}"
    return markup.titled_table(Table(title, [*columns], rows, caption))


_OF_PLACE: Mapping[str, Callable[[Place], str]] = {
    "extra NLL": lambda place: f"{place.lost:.2f}",
    "reference": lambda place: f"{place.row['nll_0']:.2f}",
    "model": lambda place: f"{place.row[f'nll_{place.model}']:.2f}",
    "it predicts": lambda place: place.predicted,
    "tokens back": lambda place: f"{place.row['distance']:,}",
    "training count": lambda place: f"{place.row['train_count']:,}",
    "sequence": lambda place: f"{place.row['sequence']:,}",
}
"""Columns of places beside the text."""


def _in_context(place: Place) -> str:
    token = place.row["text"]
    is_apart = place.before[-1:].isspace() or token[:1].isspace()
    marked = tag("mark", text(token if token.strip() else repr(token)[1:-1]))
    context = tag("bdi", text(place.before), " " * is_apart, marked)
    if not place.is_shown:
        return Html(context)
    sequence, position = place.row["sequence"], place.row["position"]
    return Html(tag("a", context, href="#tokens", data_sequence=sequence, data_position=position))


def _documents(comparison: Comparison, model: str, shown: Collection[int]) -> str:
    """The documents that add most to a model's gap, and all others: the rows add up to the gap."""
    import polars as pl

    frame = comparison.tables.by_document.filter(model=model).with_columns(
        all=pl.col("nats_model") - pl.col("nats_reference"),
        hits=pl.col("ar_nats_model") - pl.col("ar_nats_reference"),
    )
    gap, row = float(frame["all"].sum()), comparison.totals[model, "all"]
    if not (frame["all"].abs().sum() or frame["hits"].abs().sum()):
        heading = tag("h3", text(f"The documents that add most to the gap of {model}"))
        return heading + notes(f"{model} predicts every document exactly as {comparison.reference} does.")
    is_lead = gap < 0 and not is_void(row)
    called = "lead" if is_lead else "gap"
    by_size = pl.col("all") if is_lead else -pl.col("all")
    ordered = frame.sort(by_size, "document")
    first, others = ordered.head(_MOST_DOCUMENTS), ordered.tail(-_MOST_DOCUMENTS)

    def cells(document: str, sums: Mapping[str, Any]) -> list[str]:
        share = DASH if is_void(row) else percent(sums["all"] / gap)
        counts = [f"{sums[name]:,}" for name in ("tokens", "ar_hits")]
        nats = [f"{sums[name]:z,.1f}" for name in ("hits", "all")]
        return [document, sums.get("source", DASH), *counts, *nats, share]

    rows = [cells(_document(sums["document"], shown), sums) for sums in first.to_dicts()]
    if len(others):
        together = Html(tag("span", f"the {len(others):,} others", class_="rest"))
        [sums] = others.select(pl.col("tokens", "ar_hits", "hits", "all").sum()).to_dicts()
        rows.append(cells(together, sums))
    caption = f"Nats: the model's less the reference's, summed; all rows add up to {gap:z,.1f}."
    if shown and not set(first["document"]) <= set(shown):
        caption += " Documents without a link are not on this page: "
        caption += "recallkit report DIR --document N adds one."
    what = f"{comparison.hit}s"
    heads = ["document", "source", "tokens", what, f"nats on {what}", "nats on all tokens"]
    title = f"The documents that add most to the {called} of {model}"
    return markup.titled_table(Table(title, [*heads, f"share of the {called}"], rows, caption))


def _document(number: int, shown: Collection[int]) -> str:
    if number not in shown:
        return f"{number:,}"
    return Html(tag("a", f"{number:,}", href="#tokens", data_document=number))
