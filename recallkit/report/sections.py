"""The sections of a page: a comparison, its text, other results, and how they were measured.

And where each model loses most: the AR hits that cost it most, in their context, and the documents.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import ComparisonView
from recallkit.display.cells import counted, percent
from recallkit.display.charts import shorten, specification
from recallkit.display.exports import compact_json
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import is_void
from recallkit.recall.samples import read_samples
from recallkit.registry import resolve
from recallkit.report import markup, words
from recallkit.report.markup import Section
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.attribution.view import Causal
    from recallkit.display.charts import Figure, Style
    from recallkit.display.views import ResultView
    from recallkit.recall.tables import RecallTables
    from recallkit.report.excerpts import Place, TokenView


def pictures(figures: Sequence[Figure], styles: Mapping[str, Style]) -> list[dict[str, Any]]:
    """Figures for the templates; `styles` are those of all models of the page. One of several
    plots is as wide as the page."""
    values = []
    for figure in figures:
        spec = compact_json(specification(figure, styles, on_page=True))
        words = {"name": figure.name, "title": figure.title, "caption": figure.caption}
        values.append({**words, "json": spec, "is_broad": "facet" in figure.spec})
    return values


# ---------------------------------------------------------------------------------- the comparison


def figures_section(figures: Sequence[Figure], styles: Mapping[str, Style]) -> Section:
    """The charts of a comparison, first what state costs or that by training frequency."""
    ordered = sorted(figures, key=lambda figure: figure.name not in ("price", "by_count"))
    is_of_gaps = any(figure.name in ("by_count", "by_threshold") for figure in figures)
    title = "What recall and the gap depend on" if is_of_gaps else "What recall depends on"
    return Section("figures", title, "figures", {"figures": pictures(ordered, styles)})


def tables_section(comparison: Comparison, causal: Causal) -> Section:
    """Every table of a comparison; `causal`: the causal recall of its models, where it is known."""
    tables = ComparisonView(comparison, causal, is_page=True).display_tables
    return Section("tables", "Tables", "tables", {"tables": list(tables.values())})


def method_section(comparison: Comparison) -> Section:
    """How it was measured, and the commands that were typed for it."""
    values = {
        "definition": words.definition(comparison),
        "facts": {**words.method(comparison), "Files read": words.files(comparison)},
        "commands": words.commands(comparison),
    }
    return Section("method", "How it was measured", "method", values)


# -------------------------------------------------------------------------------------- the tokens

_TEXT = ("tokens", "The text, token by token")


def token_section(view: TokenView, comparison: Comparison) -> Section:
    """The text that models were scored on, token by token."""
    notes = _view_notes(view, comparison.hit)
    return Section(
        *_TEXT, "text", {"has_counts": comparison.has_counts, "notes": notes, "json": view.data}
    )


def no_token_section(reason: str) -> Section:
    """Why there is no token view, and what can be done about it."""
    return Section(*_TEXT, "notes", {"notes": [f"The text is not shown here: {reason}."]})


def _view_notes(view: TokenView, hit: str) -> list[str]:
    """Which part of the text is shown, and notes on models with other tokenizers."""
    lines = []
    if view.sequences < view.num_sequences or not view.are_whole:
        some = f"{view.sequences:,} of {view.num_sequences:,} sequences"
        parts = "" if view.are_whole else "parts of "
        also = ", and the requested ones" if view.requested else ""
        lines.append(
            f"This page has {parts}{some}: those with the {hit}s on which models lose most{also}. "
            "To add others: recallkit report DIR --sequence N, or --document N."
        )
    if view.requested_shown < view.requested:
        lines.append(
            f"Of {view.requested:,} requested sequences only the first {view.requested_shown:,} "
            "fit on the page."
        )
    lines += [
        f"{name} has another tokenizer. It counts as right if it ranked first all of its own "
        "tokens that end in a token; where these do not begin and end with the token, this is "
        "unknown."
        for name in view.other_tokenizers
    ]
    if not view.has_bytes:
        lines.append(
            "The entries of this tokenizer are not bytes; they are shown as in its vocabulary."
        )
    return lines


# ----------------------------------------------------------------------------------- other results


def view_of(kind: str, folder: Path) -> ResultView:
    """A result of this kind as people see it."""
    classes = {name: result.view for name, result in KINDS.items()}
    view: ResultView = resolve(classes, kind, "kind of result")(folder)
    return view


def sections_of(
    view: ResultView, styles: Mapping[str, Style], models: Sequence[str]
) -> list[Section]:
    """A result's answer, its first figure and table, the others, and how it was measured.

    `models`: in this order they are in the tables, too.
    """
    kind, version = view.kind, view.manifest.get("recallkit_version", "")
    names = [field.name for field in fields(view.tables)]
    files = [f"{name}.parquet" for name in (kind, *names)]
    facts = {
        **view.method(),
        "Program": f"recallkit {version}".rstrip(),
        "Files read": ", ".join(dict.fromkeys([*files, *view.files()])),
    }
    values = {
        "figures": pictures(view.figures(), styles),
        "tables": [_ordered(table, models) for table in view.display_tables.values()],
        # The table of models and tasks is the answer of recall, that of others a chart.
        "table_first": kind == "recall",
        "facts": facts,
        "command": view.command,
    }
    samples = [_samples_section(view.folder, view.tables)] if kind == "recall" else []
    return [Section(kind, KINDS[kind].title, "result", values, view.answer()), *samples]


def _ordered(table: Table, models: Sequence[str]) -> Table:
    """The table with its rows in the order of `models`, if each is of one of them."""
    places = {model: place for place, model in enumerate(models)}
    if not {row[0] for row in table.rows} <= places.keys():
        return table
    return replace(table, rows=sorted(table.rows, key=lambda row: places[row[0]]))


def _samples_section(folder: Path, tables: RecallTables) -> Section:
    """Prompts of a recall evaluation with each model's generation, or why they are not shown."""
    place = ("generations", "Prompts and generations")
    try:
        samples = read_samples(folder, tables)
    except UserError as error:
        # Without where: a page names no folder.
        reason = "; ".join(filter(None, [error.problem, error.remedy]))
        return Section(*place, "notes", {"notes": [f"Not shown here: {reason}."]})
    values = {"shown": samples.shown, "prompts": samples.prompts, "json": samples.data}
    return Section(*place, "generations", values)


# ------------------------------------------------------------------------- where models lose most

_MOST_DOCUMENTS = 10


def losses_section(comparison: Comparison, view: TokenView | None) -> Section:
    """Of every model its places and documents; without a `view` of the text its documents alone."""
    models = []
    for number, model in enumerate(comparison.models):
        places = _places(comparison, model, view.places[number]) if view else None
        documents = _documents(comparison, model, view.documents if view else ())
        models.append({"label": shorten(model, 60), "places": places, "documents": documents})
    return Section("losses", "Where each model loses most", "losses", {"models": models})


def _places(comparison: Comparison, model: str, places: Sequence[Place]) -> dict[str, Any]:
    """The AR hits of all the text on which a model's NLL is most above the reference's."""
    reference, what = comparison.reference, comparison.hit
    if not places:
        note = f"{model} is not behind {reference} on any {what}."
        return {"title": f"The {what}s on which {model} loses most", "note": note}
    hits = comparison.totals[model, "ar_hit"]
    lost, here = hits["delta_nll"] * hits["tokens"], sum(place.lost for place in places)
    sentences = [f"Out of {hits['tokens']:,} {what}s; NLLs in nats."]
    if 0 < here < lost:
        share = f"{percent(here / lost)} of the {lost:,.1f} nats"
        these = f"These {len(places)} account" if len(places) > 1 else "It accounts"
        sentences.append(f"{these} for {share} that {model} loses on {what}s.")
    if not all(place.is_shown for place in places):
        sentences.append(
            "Hits without a link are not on this page: recallkit report DIR --sequence N adds "
            "their sequence."
        )
    columns = f"""
        context     | {what} in its context
        lost        | extra NLL             | .2f
        nll_0       | reference             | .2f
        nll         | model                 | .2f
        predicted   | it predicts
        distance    | tokens back           | ,
        {"train_count | training count      | ," if comparison.has_counts else ""}
        sequence    | sequence              | ,
    """
    rows = []
    for place in places:
        own = {
            "context": _in_context(place),
            "lost": place.lost,
            "nll": place.row[f"nll_{place.model}"],
        }
        rows.append({**place.row, **own, "predicted": place.predicted})
    title = f"The {counted(len(rows), what)} on which {model} loses most against {reference}"
    return {"table": Table.from_rows(title, columns, rows, " ".join(sentences))}


def _in_context(place: Place) -> str:
    token = place.row["text"]
    return markup.part(
        "hit_in_context",
        before=place.before,
        token=token if token.strip() else repr(token)[1:-1],
        is_apart=place.before[-1:].isspace() or token[:1].isspace(),
        is_shown=place.is_shown,
        sequence=place.row["sequence"],
        position=place.row["position"],
    )


def _documents(comparison: Comparison, model: str, linked: Collection[int]) -> dict[str, Any]:
    """The documents that add most to a model's gap, and all others: the rows add up to the gap."""
    import polars as pl

    frame = comparison.tables.by_document.filter(model=model).with_columns(
        all=pl.col("nats_model") - pl.col("nats_reference"),
        hits=pl.col("ar_nats_model") - pl.col("ar_nats_reference"),
    )
    gap, total = float(frame["all"].sum()), comparison.totals[model, "all"]
    if not (frame["all"].abs().sum() or frame["hits"].abs().sum()):
        note = f"{model} predicts every document exactly as {comparison.reference} does."
        return {"title": f"The documents that add most to the gap of {model}", "note": note}
    is_lead = gap < 0 and not is_void(total)
    called, what = "lead" if is_lead else "gap", f"{comparison.hit}s"
    ordered = frame.sort(pl.col("all") if is_lead else -pl.col("all"), "document")
    first, others = ordered.head(_MOST_DOCUMENTS), ordered.tail(-_MOST_DOCUMENTS)
    rows = []
    for row in first.to_dicts():
        number = row["document"]
        rows.append({**row, "document": markup.part("document", number, is_shown=number in linked)})
    if len(others):
        [sums] = others.select(pl.col("tokens", "ar_hits", "hits", "all").sum()).to_dicts()
        rows.append({**sums, "document": markup.part("others", len(others)), "source": None})
    for row in rows:
        row["share"] = None if is_void(total) else row["all"] / gap
    columns = f"""
        document
        source
        tokens   | tokens             | ,
        ar_hits  | {what}             | ,
        hits     | nats on {what}     | z,.1f
        all      | nats on all tokens | z,.1f
        share    | share of the {called}
    """
    caption = f"Nats: the model's less the reference's, summed; all rows add up to {gap:z,.1f}."
    if linked and not set(first["document"]) <= set(linked):
        caption += (
            " Documents without a link are not on this page: recallkit report DIR --document N "
            "adds one."
        )
    title = f"The documents that add most to the {called} of {model}"
    return {"table": Table.from_rows(title, columns, rows, caption)}
