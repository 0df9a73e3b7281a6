"""Makes a page from the results in a folder: finds, reads, draws and writes."""

from __future__ import annotations

import itertools
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.attribution.charts import figures as draw
from recallkit.attribution.comparison import Comparison, are_alike, read_comparison
from recallkit.declarations import names, numbers, path
from recallkit.display.charts import styles_of
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.intervening.view import causal_recall
from recallkit.options import ReportOptions
from recallkit.report import excerpts, markup, sections, words
from recallkit.report.sections import losses_section
from recallkit.report.sequence import score_files
from recallkit.storage import artifacts, hashing, parquet_files
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import KINDS
from recallkit.storage.unfinished import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.attribution.view import Causal
    from recallkit.display.charts import Figure
    from recallkit.display.progress import Show
    from recallkit.display.views import ResultView
    from recallkit.report.excerpts import TokenView
    from recallkit.report.markup import Section

_DEEPEST = 3
_MOST_NAMED = 5
_ADDED = "with the slices and scores that were compared, recallkit report DIR --slices DIR adds it"
"""The text, where it is not on a page."""
_PARTS = 3
"""Of making a page: its figures, its tables, its text."""
_MOST_OF_PLACES = 100_000
"""Bytes of a page that its tables of places may need."""
_SEVERAL_QUESTION = "How much do these models, and this text, recall?"
"""Of a page with several kinds of results, but no comparison."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written. `results`: kind -> its folder; `excerpts`: number of those shown."""

    page: Path
    num_bytes: int
    results: Mapping[str, Path]
    excerpts: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        results = {kind: str(folder) for kind, folder in self.results.items()}
        return {
            "page": str(self.page),
            "bytes": self.num_bytes,
            "results": results,
            "excerpts": self.excerpts,
        }


def write_report(
    folder: Path,
    out: Path | None = None,
    options: ReportOptions = ReportOptions(),
) -> Report:
    """Writes the page of the results in `folder`, by default as report.html beside the comparison.

    It is written atomically; one that was made of the same files with the same options is left as
    it is. Raises UserError if there are no results, too many to choose from, or damaged ones, if
    text was requested that does not exist, and if a file of somebody else's would be replaced.
    """
    results = find_results(folder, [path(name) for name in names(options.more)])
    comparison = None
    if "gap" in results:
        comparison = read_comparison(results["gap"], path(options.slices))
    elif _asks_for_text(options):
        problem = "there is no comparison here, hence no text to show"
        raise UserError(problem, where=folder, remedy="leave out --slices, --sequence, --document")
    target = out or (comparison.folder if comparison else folder) / "report.html"
    artifacts.check_addable(artifacts.list_of(target), [target.name], "a page")
    inputs = _inputs(comparison, results, options)
    earlier = markup.read_stamp(target)
    if earlier is not None and earlier.inputs == inputs:
        return Report(target, target.stat().st_size, results, earlier.excerpts)
    with progress("making the page", total=_PARTS, unit="parts") as show:
        content, num_excerpts = _compose(comparison, results, options, show)
    content = markup.stamped(content, markup.Stamp(inputs, num_excerpts))
    with artifacts.adding(target, "a page") as temporary:
        temporary.write_bytes(content)
    return Report(target, len(content), results, num_excerpts)


def _inputs(
    comparison: Comparison | None,
    results: Mapping[str, Path],
    options: ReportOptions,
) -> str:
    """The digest of all that a page is made of: files, wherever they are, and the options."""
    files = []
    for folder in results.values():
        files += sorted(folder.glob("*.parquet"))  # their footers have the facts
    if comparison is not None and comparison.slices is not None:
        labels = ("tokens.parquet", "sequences.parquet", "tokenizer.json")
        read = [comparison.slices / name for name in labels]
        read += score_files(comparison, comparison.slices).values()
        files += [file for file in read if file.is_file()]
    facts = [str(options), [file.name for file in files], markup.resources()]
    return hashing.digest_inputs(facts, files)


def figures_of(results: Mapping[str, Path], models: Sequence[str] = ()) -> list[Figure]:
    """The figures of results by kind, of some `models` or of all, those of a comparison first."""
    drawn = draw(read_comparison(results["gap"]), models) if "gap" in results else []
    for view in _views(results).values():
        drawn += view.figures(models)
    return drawn


# ----------------------------------------------------------------------------------------- finding


def find_results(folder: Path, more: Sequence[Path] = ()) -> dict[str, Path]:
    """Kind -> the folder of its results, in `folder` and in up to three levels of folders in it.

    What one of the folders `more` contains is taken in place of what `folder` does. Folders that
    are hidden, contain unfinished work, or are links are not looked into. Raises UserError where a
    folder is none, where there is no result, and where there are several of a kind to choose from.
    """
    for top in (folder, *more):
        if not top.is_dir():
            remedy = "name one that `recallkit gap`, `eval-recall`, `mqar` or `profile` wrote"
            raise UserError("no such directory", where=top, remedy=remedy)
    added, inside = _results(more), _results([folder])
    places = {kind: added[kind] or inside[kind] for kind in KINDS}
    results = {kind: _only(kind, some, folder) for kind, some in places.items() if some}
    if not results:
        remedy = "make some with `recallkit gap REFERENCE MODEL... --slices DIR`"
        raise UserError("no results here, nor in the folders within", where=folder, remedy=remedy)
    return results


def _results(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The folders of each kind of result, each once however it is reached."""
    places: dict[Path, Path] = {}
    for top in folders:
        for place in _within(top):
            places.setdefault(place.resolve(), place)

    def of_kind(kind: str) -> list[Path]:
        return [place for place in places.values() if _contains(place, kind)]

    return {kind: of_kind(kind) for kind in KINDS}


def _within(top: Path) -> Iterator[Path]:
    """`top` and the folders in it, in order of their names."""
    for place, folders, _ in os.walk(top):
        is_deepest = len(Path(place).relative_to(top).parts) >= _DEEPEST
        others = (name for name in folders if not (name.startswith(".") or name.endswith(PARTIAL)))
        folders[:] = [] if is_deepest else sorted(others)
        yield Path(place)


def _contains(folder: Path, kind: str) -> bool:
    """Whether a result of this kind is right here, and no other file of that name."""
    file = folder / f"{kind}.parquet"
    try:
        return file.is_file() and bool(parquet_files.read_manifest(file).get("kind") == kind)
    except UserError as error:
        # A damaged one is one all the same, as is a comparison of another version: reading it
        # says what is wrong with it.
        return kind == "gap" or isinstance(error, DamagedError)


def _only(kind: str, folders: Sequence[Path], top: Path) -> Path:
    if len(folders) > 1:
        paths = [str(folder).removeprefix(f"{top}{os.sep}") for folder in folders[:_MOST_NAMED]]
        listed = ", ".join(paths) + " ..." * (len(folders) > _MOST_NAMED)
        problem = f"{len(folders)} {KINDS[kind].called} here ({listed})"
        raise UserError(problem, where=top, remedy="name one of them, or add it with --with")
    return folders[0]


# --------------------------------------------------------------------------------------- composing


def _views(results: Mapping[str, Path]) -> dict[str, ResultView]:
    """Results other than a comparison, by kind."""
    return {kind: sections.view_of(kind, place) for kind, place in results.items() if kind != "gap"}


def _compose(
    comparison: Comparison | None,
    results: Mapping[str, Path],
    options: ReportOptions,
    show: Show,
) -> tuple[bytes, int]:
    """The page, and how many excerpts of text it shows; `show` gets how many of _PARTS are done."""
    views = _views(results)
    # The first screen has the picture of the answer.
    drawn = [figure for figure in draw(comparison) if figure.name != "recall"] if comparison else []
    styles = styles_of([*drawn, *(figure for view in views.values() for figure in view.figures())])
    order = [comparison.reference, *comparison.models] if comparison else []
    others = {kind: sections.sections_of(view, styles, order) for kind, view in views.items()}
    if comparison is None:
        return _without_comparison(results, [*itertools.chain(*others.values())]), 0
    show(1)
    comparison = replace(comparison, tables=comparison.tables.ordered(comparison.models))
    before = [sections.figures_section(drawn, styles), *others.pop("intervene", [])]
    after = [
        *itertools.chain(*others.values()),
        sections.tables_section(comparison, _causal(comparison, views.get("intervene"))),
        sections.method_section(comparison),
    ]
    question, answer = words.question(comparison), words.answer(comparison)
    first_screen = words.first_screen(comparison)

    def page(view: TokenView | None, text: Sequence[Section]) -> bytes:
        parts = [*before, losses_section(comparison, view), *text, *after]
        return markup.page(question, question, parts, answer, first_screen)

    show(2)
    most_bytes = markup.MOST_BYTES - len(page(None, [])) - _MOST_OF_PLACES
    view, why = _view(comparison, options, min(excerpts.MOST_BYTES, most_bytes))
    if view is None:
        return page(None, [sections.no_token_section(why)]), 0
    return page(view, [sections.token_section(view, comparison)]), view.num_excerpts


def _without_comparison(results: Mapping[str, Path], parts: Sequence[Section]) -> bytes:
    """The page of other results; the answer of a single one comes first, without its heading."""
    title = "; ".join(KINDS[kind].title for kind in results)
    if len(results) > 1:
        return markup.page(title, _SEVERAL_QUESTION, parts, "")
    [kind], [first, *others] = results, parts
    return markup.page(
        title, KINDS[kind].question, [replace(first, answer=""), *others], first.answer
    )


def _causal(comparison: Comparison, view: ResultView | None) -> Causal:
    """The causal recall of models, if the page has an intervention of these labels and scores."""
    if view is None:
        return {}
    compared = comparison.manifest
    manifest = view.manifest
    of_labels = are_alike(manifest["slices"], compared["slices"])
    scores = compared["scores"]
    same = [model for model, options in manifest["scores"].items() if scores.get(model) == options]
    if not of_labels or not manifest["models"][0] == comparison.reference in same:
        return {}
    return {model: row for model, row in causal_recall(view.tables).items() if model in same}


def _asks_for_text(options: ReportOptions) -> bool:
    numbered = numbers(options.sequence) or numbers(options.document)
    return options.slices is not None or bool(numbered)


def _view(
    comparison: Comparison,
    options: ReportOptions,
    most_bytes: int,
) -> tuple[TokenView | None, str]:
    """The token view, or None and why there is none.

    Raises UserError if text was requested, or a file of it is damaged.
    """
    reason, remedy = UserError("the slices of this comparison were not found"), f"; {_ADDED}"
    if comparison.slices is not None:
        sequences, documents = numbers(options.sequence), numbers(options.document)
        try:
            view = excerpts.token_view(comparison, sequences, documents, most_bytes)
            if view.num_excerpts:
                return view, ""
            problem = f"no excerpt contains {comparison.hit}s, or none fits on a page"
            reason = UserError(problem, remedy="leave out --slices, --sequence, --document")
            remedy = ""
        except DamagedError:
            raise
        except UserError as error:
            reason = error
    if _asks_for_text(options):
        where, remedy = reason.where or comparison.folder, reason.remedy or "give --slices DIR"
        raise UserError(reason.problem, where=where, remedy=remedy)
    return None, f"{reason.problem}{remedy}"
