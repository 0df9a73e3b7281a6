"""The sections of a page: a comparison's results, its tokens, recall evaluations, MQAR, a profile, and how it was measured."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from recallkit.attribution import answer
from recallkit.attribution.answer import enriched
from recallkit.attribution.charts import figures as draw
from recallkit.attribution.view import (
    by_source_table,
    comparators_table,
    context_tables,
    gap_rows,
    given_table,
    overlap_table,
    partition_table,
    share_notes,
)
from recallkit.display import cells
from recallkit.display.cells import counted, percent
from recallkit.display.charts import specification
from recallkit.display.tables import Table
from recallkit.errors import UserError
from recallkit.measure.shares import is_void
from recallkit.recall.samples import MOST_OF_EACH, read_samples
from recallkit.registry import resolve
from recallkit.report import markup, words
from recallkit.report.markup import Section, notes, tag, text
from recallkit.storage import artifacts
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from recallkit.attribution.comparison import Comparison
    from recallkit.display.charts import Figure, Style
    from recallkit.display.exports import Look
    from recallkit.recall.tables import RecallTables
    from recallkit.report.excerpts import TokenView


def pictures(figures: Sequence[Figure], styles: Mapping[str, Style]) -> str:
    """Figures, side by side if there is room; `styles` are those of all models of the page."""
    return tag("div", *(_picture(figure, styles) + "\n" for figure in figures), class_="pictures") if figures else ""


def _picture(figure: Figure, styles: Mapping[str, Style], **more: str) -> str:
    """A figure; `more` are attributes in place of its identifier."""
    spec = json.dumps(specification(figure, styles, on_page=True), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    kind = {"class_": "broad"} if "facet" in figure.spec else {}
    attributes = more or {"id": f"figure-{figure.name}", **kind}
    drawing = tag("div", class_="chart", aria_label=figure.title), markup.data(f"specification-{figure.name}", spec)
    return tag("figure", tag("h3", text(figure.title)), *drawing, tag("figcaption", text(figure.caption)), **attributes)


# ------------------------------------------------------------------------------------------------------ the comparison


def results(comparison: Comparison, first_figures: str = "") -> str:
    """The top of the page: the answer, the figures that show it, its definition, the table, and what its shares can be compared with."""
    of = (comparison.reference, comparison.models, comparison.totals)
    first, *more = filter(None, (answer.headline(*of), answer.answer(*of, in_bits=bool(comparison.manifest["inexact"]))))
    answers = [tag("p", text(first), class_="answer"), *(tag("p", text(each)) for each in more)]
    how = tag("p", text(words.measured(comparison)), " ", tag("a", "How, commands, files", href="#method"), class_="notes")
    pairs = [(comparison.totals[model, "all"], comparison.totals[model, "ar_hit"]) for model in comparison.models]
    remarks = [tag("li", text(line)) for line in share_notes(pairs)]
    table = markup.table(results_table(comparison), id="shares") + (tag("ul", *remarks, class_="notes") if remarks else "")
    compared = markup.titled_table(comparators_table(comparison.tables, has_enrichment=False))
    return "\n".join([*answers, how, first_figures, tag("p", text(words.definition(comparison))), table, compared])


_FIRST = {"gap_parts": "How much of each gap lies in AR hits", "by_count": "NLL by training frequency (Zoology, figure 1)"}
"""The figures that a page begins with, and their titles there."""
_MOST_FIRST = 4
"""Models in the curves of the second; of more there is a figure of all further down."""


def first_figures(comparison: Comparison, figures: Sequence[Figure], styles: Mapping[str, Style]) -> tuple[str, list[Figure]]:
    """What a page begins with, and which of `figures`, all of the comparison's, it does not yet show."""
    models = _first_models(comparison)
    first = [figure for name in _FIRST for figure in figures if figure.name == name]
    if len(models) == len(comparison.models):
        return _fold(first, styles, figures), [figure for figure in figures if figure not in first]
    of_some = f" {len(models)} of {len(comparison.models):,} models; a figure of all is further down."
    some = {figure.name: replace(figure, caption=figure.caption + of_some) for figure in draw(replace(comparison, models=models))}
    shown = [some.get(figure.name, figure) if figure.name == "by_count" else figure for figure in first]
    return _fold(shown, styles, figures), [figure for figure in figures if figure not in shown]


def _fold(shown: Sequence[Figure], styles: Mapping[str, Style], figures: Sequence[Figure]) -> str:
    """The figures that a page begins with, side by side; one that is not of `figures` is of some models only, and comes again."""
    drawn = [
        _picture(replace(figure, title=_FIRST[figure.name]), styles, **({} if figure in figures else {"class_": "some"})) + "\n"
        for figure in shown
    ]
    return tag("div", *drawn, class_="fold") if drawn else ""


def _first_models(comparison: Comparison) -> list[str]:
    """The models of the first figures: all if they are few, else those at equal steps from the nearest to the farthest."""
    totals, models = comparison.totals, comparison.models
    if len(models) <= _MOST_FIRST:
        return models
    valid = [model for model in models if not is_void(totals[model, "ar_hit"])] or models
    placed = sorted(valid, key=lambda model: abs(totals[model, "all"]["delta_nll"]))
    steps = min(_MOST_FIRST, len(placed))
    return [placed[round(step * (len(placed) - 1) / max(1, steps - 1))] for step in range(steps)]


def results_table(comparison: Comparison) -> Table:
    """Perplexities and shares: the reference first, then the models by overall perplexity.

    Beside the share of the gap are the share of tokens and their ratio; the clipped share only where it is another.
    """
    reference, *rows = [row[:-1] for row in gap_rows(comparison.totals, comparison.models)]  # the control has a table with its interval
    more = []
    for model in comparison.models:
        hits = comparison.totals[model, "ar_hit"]
        clipped = cells.valid(cells.share("gap_share_clipped"))(hits)
        more.append(
            [percent(hits["share_of_tokens"], 2), enriched(hits), "" if hits["gap_share_clipped"] == hits["gap_share"] else clipped]
        )
    headers = [
        "model",
        "perplexity of all tokens",
        "of AR hits",
        "of other tokens",
        "gap, nats per token",
        "AR share of the gap, %",
        "95 % interval",
        "range over thresholds",
    ]
    headers += ["share of the tokens", "enrichment", "share, clipped"]
    shown = len(headers) if any(clipped for *_, clipped in more) else -1
    lines = [[*row, *added][:shown] for row, added in zip([reference, *rows], [["", "", ""], *more], strict=True)]
    return Table("Perplexities and shares of the gap", headers[:shown], lines)


def gap_section(comparison: Comparison, figures: Sequence[Figure], styles: Mapping[str, Style]) -> Section:
    """The charts of a comparison, and its shares by class of the partition, by source and by slice."""
    tables = comparison.tables
    classes = partition_table(tables, comparison.manifest["slices"])
    context = context_tables(tables, comparison.manifest)
    further = (classes, by_source_table(tables), given_table(tables), overlap_table(tables), *context.values())
    shown = [markup.titled_table(table) for table in further if table is not None]
    return Section("pictures", "Where the gap lies", "\n".join([pictures(figures, styles), *shown]))


def method_section(comparison: Comparison, labels: Mapping[str, Any] | None) -> Section:
    """How it was measured, and the commands that reproduce it. `labels`: the slices' manifest, if they are available."""
    facts = {**words.method(comparison), "Files read": words.files(comparison)}
    again = tag("h3", "Reproduced by") + tag("pre", tag("code", "\n".join(map(_command, words.commands(comparison, labels)))))
    return Section("method", "How it was measured", f"{_facts(facts)}\n{again}")


def _facts(facts: Mapping[str, str], *more: str) -> str:
    """Facts by name, as a list; `more` are entries as markup."""
    return tag("dl", *(tag("dt", text(fact)) + tag("dd", text(value)) + "\n" for fact, value in facts.items()), *more)


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
    unit = "sequences" if view.excerpts == view.sequences else f"parts of {counted(view.sequences, 'sequence')}"
    lines = [
        f"{view.shown:,} of {view.excerpts:,} {unit} are on this page: those where the models do worst on AR hits, compared with the "
        f"reference{', and those asked for' if view.asked else ''}. Others: recallkit report DIR --sequence N, or --document N."
    ]
    lines = lines if view.shown < view.excerpts else []
    if view.asked_shown < view.asked:
        lines.append(f"Of {view.asked:,} that were asked for, the first {view.asked_shown:,} are here; the page has room for no more.")
    lines += [
        f"{name} has a tokenizer of its own: it counts as right if all of its own tokens that end in a token were ranked first; if "
        f"its tokens do not begin and end with that token, this is unknown."
        for name in view.other_tokenizers
    ]
    if not view.has_bytes:
        lines.append("Pieces of this tokenizer have no bytes of their own and are shown as written in its vocabulary.")
    return lines


# ------------------------------------------------------------------------------------------------------- other results


def look_of(kind: str, folder: Path) -> Look:
    """A result of this kind as people see it."""
    look: Look = resolve({name: of.look for name, of in KINDS.items()}, kind, "kind of result")(folder)
    return look


def sections_of(kind: str, folder: Path, look: Look, styles: Mapping[str, Style]) -> list[Section]:
    """The sections of a result of this kind: the answer, how it was measured, its figures, its printed tables."""
    tables = [f"{each.name}.parquet" for each in fields(look.tables)]
    again = tag("dt", "Made again by") + tag("dd", tag("code", _command(look.command), class_="command"))
    version = artifacts.read_manifest(folder / f"{kind}.parquet").get("recallkit_version", "")
    read = {"Program": f"recallkit {version}".rstrip(), "Files read": ", ".join(dict.fromkeys([f"{kind}.parquet", *tables, *look.files]))}
    facts = tag("div", _facts({**look.method, **read}, *([again] if look.command else [])), class_="made")
    opening = "\n".join([*([tag("p", text(look.answer), class_="answer")] if look.answer else []), facts])
    body = "\n".join([pictures(look.figures(), styles), *map(markup.titled_table, look.shown.values())])
    samples = [_samples_section(folder, look.tables)] if kind == "recall" else []
    return [Section(kind, KINDS[kind].title, body, opening), *samples]


def _samples_section(folder: Path, tables: RecallTables) -> Section:
    """Prompts of a recall evaluation with each model's generation, or why they are not shown."""
    title = "Prompts and generations"
    try:
        samples = read_samples(folder, tables)
    except UserError as error:
        reason = "; ".join(filter(None, [error.problem, error.remedy]))  # without where: a page names no folder
        return Section("generations", title, notes(f"Not shown here: {reason}."))
    some = f" {samples.shown:,} of {samples.prompts:,} prompts are on this page, drawn by chance: of each task, model and verdict up to "
    some = "" if samples.shown == samples.prompts else f"{some}{MOST_OF_EACH}."
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
