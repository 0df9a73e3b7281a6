"""The sections of a page: a comparison's results, its tokens, recall evaluations, MQAR, a profile, and the methods."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from recallkit.attribution.view import (
    by_source_table,
    comparators_table,
    context_tables,
    gap_share,
    given_table,
    interval,
    overlap_table,
    partition_table,
    ppl,
    share_notes,
    struck_if_void,
)
from recallkit.display import chart_theme
from recallkit.display.console import percent
from recallkit.registry import resolve
from recallkit.report import markup, words
from recallkit.report.markup import tag, text
from recallkit.slicing.definitions import SPLIT
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.chart_theme import Figure
    from recallkit.display.tables import Table
    from recallkit.report.excerpts import TokenView
    from recallkit.report.words import Totals

_KINDS = tuple(slice_.name for slice_ in SPLIT)
_NUM_OWN_COLUMNS, _NUM_FAR_COLUMNS, _MOST_COLUMNS = 3, 4, 8
"""In the tables by source and of the far gap: columns before those of models, and models per part."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page under a heading of its own: `body` is markup."""

    name: str
    title: str
    body: str


def pictures(figures: Sequence[Figure]) -> str:
    """Figures, side by side if there is room."""
    return tag("div", *(_picture(figure) + "\n" for figure in figures), class_="pictures")


def _picture(figure: Figure) -> str:
    drawing = re.sub(r' xmlns="[^"]*"', "", chart_theme.svg(figure), count=1)  # redundant in HTML
    return tag("figure", tag("h3", text(figure.title)), drawing, tag("figcaption", text(figure.caption)), id=f"figure-{figure.name}")


# ------------------------------------------------------------------------------------------------------ the comparison


def results(comparison: Comparison, totals: Totals) -> str:
    """The top of the page: the answer, its definition, the table, and what its shares can be compared with."""
    return "\n".join(
        [
            tag("p", words.answer(comparison, totals), class_="answer"),
            tag("p", text(words.definition(comparison, totals))),
            results_table(comparison, totals),
            markup.shown_table(comparators_table(comparison.tables)),
        ]
    )


def results_table(comparison: Comparison, totals: Totals) -> str:
    """Perplexities and shares: the reference first, then the models by overall perplexity; below it notes on the shares."""
    heads = ("model", "perplexity of all tokens", "of AR hits", "of other tokens", "AR share of the gap", "95 % interval", "share, clipped")
    first = [totals[comparison.models[0], kind] for kind in _KINDS]
    cells = [tag("td", ppl(row["ppl_reference"])) for row in first] + [tag("td", "reference", colspan=3, class_="soft")]
    rows = [tag("tr", tag("th", text(comparison.reference), scope="row"), *cells)]
    for model in comparison.models:
        row = totals[model, "ar_hit"]
        clipped = struck_if_void(row, percent(row["gap_share_clipped"]))
        cells = [tag("td", ppl(totals[model, kind]["ppl_model"])) for kind in _KINDS]
        cells += [tag("td", markup.figure(gap_share(row)), class_="share"), tag("td", interval(row)), tag("td", markup.figure(clipped))]
        rows.append(tag("tr", tag("th", text(model), scope="row"), *cells))
    notes = [tag("li", text(line)) for line in share_notes(totals[model, "ar_hit"] for model in comparison.models)]
    table = markup.table("Perplexities and shares of the gap", heads, rows)
    return table + (tag("ul", *notes, class_="notes") if notes else "")


def gap_section(comparison: Comparison, figures: Sequence[Figure]) -> Section:
    """The charts of a comparison, and its shares by class of the partition, by source and by slice."""
    tables, models = comparison.tables, len(comparison.models)
    classes = partition_table(tables, comparison.manifest["slices"], models)
    wide = ((classes, _NUM_OWN_COLUMNS - 1), (by_source_table(tables), _NUM_OWN_COLUMNS))
    shown = [part for table, own in wide if table is not None for part in _side_by_side(table, own)]
    shown += [table for table in (given_table(tables), overlap_table(tables)) if table is not None]
    context = context_tables(tables, comparison.manifest, models)
    shown += [context["context_gain"], *_side_by_side(context["by_context"], _NUM_FAR_COLUMNS)] if context else []
    return Section("pictures", "Where the gap lies", "\n".join([pictures(figures), *map(markup.shown_table, shown)]))


def _side_by_side(table: Table, own: int) -> list[Table]:
    """Divides a table with one column per model into parts that fit on paper; each repeats the first `own` columns."""
    places = range(own, len(table.headers))
    parts = [[*range(own), *places[start : start + _MOST_COLUMNS]] for start in range(0, len(places), _MOST_COLUMNS)]
    if len(parts) == 1:
        return [table]
    return [
        replace(
            table,
            title=f"{table.title} ({number} of {len(parts)})",
            headers=[table.headers[place] for place in part],
            rows=[[row[place] for place in part] for row in table.rows],
            caption=table.caption if number == len(parts) else None,
        )
        for number, part in enumerate(parts, 1)
    ]


def method_section(comparison: Comparison, totals: Totals, labels: Mapping[str, Any] | None) -> Section:
    """How it was measured, and the commands that reproduce it."""
    facts = words.method(comparison, totals)
    listed = tag("dl", *(tag("dt", text(fact)) + tag("dd", text(value)) + "\n" for fact, value in facts.items()))
    # A line may break between the words of a command, never within an option.
    commands = "\n".join(" ".join(tag("span", text(word)) for word in command.split(" ")) for command in words.commands(comparison, labels))
    again = tag("h3", "Reproduced by") + tag("pre", tag("code", commands))
    return Section("method", "How it was measured", f"{listed}\n{again}")


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


def token_section(view: TokenView, folder: str) -> Section:
    """The text that models were scored on, token by token. `folder`: the folder as the user would name it in a command."""
    keys = " · ".join(f"{tag('kbd', text(key))} {text(what)}" for key, what in _KEYS)
    intro = (
        "Each token is coloured by which model predicts it, that is, ranks it first. ",
        tag("span", "Underlined", class_="sample hit"),
        " are AR hits, ",
        tag("span", "dotted", class_="sample repeated"),
        " are other tokens of repeated bigrams, which were too frequent in training to be AR hits. ",
        "Point at a token, or move to it, to highlight the latest earlier occurrence of its bigram and to show each model's NLL "
        "(negative log-likelihood, in nats) and the token's rank in its prediction, 0 being the first.",
    )
    parts = (
        tag("p", *intro),
        *(tag("p", text(line), class_="notes") for line in _view_notes(view, folder)),
        tag("p", "Keys in the text: ", keys, class_="keys"),
        tag("noscript", tag("p", "The token view needs JavaScript; everything else on this page does not.", class_="notes")),
        tag("div", id="view", hidden=""),
        markup.data("excerpts", view.data),
    )
    return Section("tokens", "The text, token by token", "\n".join(parts))


def no_token_section(reason: str, folder: str) -> Section:
    """Why there is no token view, and how to add it."""
    remedy = f"with the slices and scores that were compared, recallkit report {folder} --slices DIR adds it"
    told = f"The text is not shown here: {reason}; {remedy}."
    return Section("tokens", "The text, token by token", tag("p", text(told), class_="notes"))


def _view_notes(view: TokenView, folder: str) -> list[str]:
    """Which part of the text is shown, and notes on models with other tokenizers."""
    unit = "sequences" if view.excerpts == view.sequences else f"parts of {view.sequences:,} sequences"
    lines = [
        f"{view.shown:,} of {view.excerpts:,} {unit} are on this page: those where the models' NLL on AR hits exceeds the reference's most"
        f"{', and those asked for' if view.asked else ''}. Others: recallkit report {folder} --sequence N, or --document N."
    ]
    if view.asked_shown < view.asked:
        lines.append(f"Of {view.asked:,} that were asked for, the first {view.asked_shown:,} are here; the page has room for no more.")
    lines += [
        f"{name} has a tokenizer of its own: it counts as right if all of its own tokens that end in a token were ranked first; if "
        f"its tokens do not begin and end with that token, this is unknown."
        for name in view.own_tokenizers
    ]
    if not view.has_bytes:
        lines.append("Pieces of this tokenizer have no bytes of their own and are shown as written in its vocabulary.")
    return lines


# ------------------------------------------------------------------------------------------------------- other results


def section_of(kind: str, folder: Path) -> tuple[Section, list[Figure]]:
    """The section of a result of this kind: the tables that are printed of it, and its pictures."""
    look = resolve({name: of.look for name, of in KINDS.items()}, kind, "kind of result")(folder)
    shown = [markup.shown_table(table) for table in look.shown.values()]
    answer = [tag("p", text(look.answer), class_="answer")] if look.answer else []
    return Section(kind, KINDS[kind].title, "\n".join([*answer, *shown, pictures(look.figures)])), list(look.figures)


OTHERS = {kind: partial(section_of, kind) for kind in KINDS if kind != "gap"}
"""Kind of result -> its section."""
