"""Makes a page from the results in a folder: finds, reads and draws them, and writes the page atomically."""

from __future__ import annotations

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.attribution.charts import figures as draw
from recallkit.attribution.comparison import Comparison, labels_identity, read_comparison
from recallkit.declarations import names, numbers, path
from recallkit.display.charts import styles_of
from recallkit.errors import UserError
from recallkit.intervening.view import causal_recall
from recallkit.options import ReportOptions
from recallkit.report import excerpts, markup, sections, words
from recallkit.report.sections import losses_section
from recallkit.report.sequence import score_files
from recallkit.storage import artifacts
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import KINDS
from recallkit.storage.unfinished import PARTIAL

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.attribution.view import Causal
    from recallkit.display.charts import Figure
    from recallkit.display.exports import Look
    from recallkit.report.excerpts import TokenView
    from recallkit.report.markup import Section

_DEEPEST = 3
_MOST_NAMED = 5
_ADDED = "with the slices and scores that were compared, recallkit report DIR --slices DIR adds it"
"""The text, where it is not on a page."""
_MOST_OF_PLACES = 100_000
"""Bytes of a page that its tables of places may need."""
_SEVERAL_QUESTION = "How much do these models, and this text, recall?"
"""Of a page with several kinds of results, but no comparison."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written. `results`: kind -> the folder where it was found; `excerpts`: number of those shown."""

    page: Path
    num_bytes: int
    results: Mapping[str, Path]
    excerpts: int

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "page": str(self.page),
            "bytes": self.num_bytes,
            "results": {kind: str(folder) for kind, folder in self.results.items()},
            "excerpts": self.excerpts,
        }


def write_report(folder: Path, out: Path | None = None, options: ReportOptions = ReportOptions()) -> Report:
    """Writes the page of the results in `folder`, by default as report.html beside the comparison, atomically; one that is there and was
    made of the same files with the same options is left as it is.

    Raises UserError if there are no results, too many to choose from, or damaged ones; if text was requested that does not exist;
    and if a file that recallkit did not write would be replaced.
    """
    found = find_results(folder, [Path(name) for name in names(options.more)])
    comparison = read_comparison(found["gap"], path(options.slices)) if "gap" in found else None
    if comparison is None and _asks_for_text(options):
        problem = "there is no comparison here, hence no text to show"
        raise UserError(problem, where=folder, remedy="leave out --slices, --sequence, --document")
    target = out or (comparison.folder if comparison else folder) / "report.html"
    artifacts.check_replaceable(target, markup.HEAD)
    inputs = _inputs(comparison, found, options)
    if (kept := markup.read_stamp(target)) is not None and kept.inputs == inputs:
        return Report(target, target.stat().st_size, found, kept.excerpts)
    content, num_excerpts = _compose(comparison, found, options)
    content = markup.stamped(content, markup.Stamp(inputs, num_excerpts))
    with artifacts.adding(target) as temporary:
        temporary.write_bytes(content)
    return Report(target, len(content), found, num_excerpts)


def _inputs(comparison: Comparison | None, found: Mapping[str, Path], options: ReportOptions) -> str:
    """The digest of all that a page is made of: the files of results, labels, text and scores, wherever they are, and the options."""
    files = [path for folder in found.values() for path in sorted(folder.glob("*.parquet"))]  # their footers have the facts
    if comparison is not None and comparison.slices is not None:
        named = ("tokens.parquet", "sequences.parquet", "tokenizer.json")
        read = [*(comparison.slices / name for name in named), *score_files(comparison, comparison.slices).values()]
        files += [path for path in read if path.is_file()]
    asked = {each.name: str(getattr(options, each.name)) for each in fields(ReportOptions)}
    return artifacts.digest_inputs([asked, [path.name for path in files], markup.resources()], files)


def figures_of(found: Mapping[str, Path], models: Sequence[str] = ()) -> list[Figure]:
    """The figures of results by kind, of some `models` or of all, those of a comparison first."""
    compared = draw(read_comparison(found["gap"]), models) if "gap" in found else []
    return [*compared, *(figure for look in _looks(found).values() for figure in look.figures(models))]


# ------------------------------------------------------------------------------------------------------------- finding


def find_results(folder: Path, more: Sequence[Path] = ()) -> dict[str, Path]:
    """Kind -> the folder of its results, in `folder` and in up to three levels of folders in it; kinds that are not there are left out.

    What one of the folders `more` contains is taken in place of what `folder` does. Folders that are hidden, contain unfinished
    work, or are links are not looked into. Raises UserError where a folder is none, where there is no result at all, and where there
    are several of a kind to choose from.
    """
    for place in (folder, *more):
        if not place.is_dir():
            remedy = "name one that `recallkit gap`, `eval-recall`, `mqar` or `profile` wrote"
            raise UserError("no such directory", where=place, remedy=remedy)
    added, inside = _results(more), _results([folder])
    found = {kind: _only(kind, added[kind] or inside[kind], folder) for kind in KINDS if added[kind] or inside[kind]}
    if not found:
        remedy = "make some with `recallkit gap REFERENCE MODEL... --slices DIR`"
        raise UserError("no results here, nor in the folders within", where=folder, remedy=remedy)
    return found


def _results(folders: Sequence[Path]) -> dict[str, list[Path]]:
    """The folders of each kind of result, each once however it is reached."""
    places: dict[Path, Path] = {}
    for place in (place for top in folders for place in _within(top)):
        places.setdefault(place.resolve(), place)
    return {kind: [place for place in places.values() if _contains(place, kind)] for kind in KINDS}


def _within(top: Path) -> Iterator[Path]:
    """`top` and the folders in it, in order of their names."""
    for path_, folders, _ in os.walk(top):
        is_deepest = len(Path(path_).relative_to(top).parts) >= _DEEPEST
        folders[:] = sorted(name for name in folders if not (is_deepest or name.startswith(".") or name.endswith(PARTIAL)))
        yield Path(path_)


def _contains(folder: Path, kind: str) -> bool:
    """Whether a result of this kind is right here. A file of that name that we did not write is not one."""
    file = folder / f"{kind}.parquet"
    try:
        return file.is_file() and bool(artifacts.read_manifest(file).get("kind") == kind)
    except UserError as error:
        # One that is damaged is one all the same, as is a comparison of another version: reading it says what is wrong with it.
        return kind == "gap" or isinstance(error, DamagedError)


def _only(kind: str, folders: Sequence[Path], top: Path) -> Path:
    if len(folders) > 1:
        shown = [str(folder.relative_to(top)) if folder.is_relative_to(top) else str(folder) for folder in folders]
        listed = ", ".join(shown[:_MOST_NAMED]) + (" ..." if len(shown) > _MOST_NAMED else "")
        raise UserError(f"{len(folders)} {KINDS[kind].called} here ({listed})", where=top, remedy="name one of them, or add it with --with")
    return folders[0]


# ------------------------------------------------------------------------------------------------------------- composing


def _looks(found: Mapping[str, Path]) -> dict[str, Look]:
    """Results other than a comparison, by kind."""
    return {kind: sections.look_of(kind, place) for kind, place in found.items() if kind != "gap"}


def _compose(comparison: Comparison | None, found: Mapping[str, Path], options: ReportOptions) -> tuple[bytes, int]:
    """The page, and how many excerpts of text it shows."""
    looks = _looks(found)
    # The first screen has the picture of the answer.
    drawn = [figure for figure in draw(comparison) if figure.name != "recall"] if comparison else []
    styles = styles_of([*drawn, *(figure for look in looks.values() for figure in look.figures())])
    order = [] if comparison is None else [comparison.reference, *comparison.models]
    others = {kind: sections.sections_of(kind, found[kind], look, styles, order) for kind, look in looks.items()}
    if comparison is None:
        title, (first, *more) = "; ".join(KINDS[kind].title for kind in found), [section for of in others.values() for section in of]
        if len(found) > 1:
            return markup.page(title, _SEVERAL_QUESTION, "", [first, *more]), 0
        return markup.page(title, KINDS[next(iter(found))].question, first.opening, [replace(first, opening=""), *more]), 0
    comparison = replace(comparison, tables=comparison.tables.ordered(comparison.models))
    causal = _causal(comparison, looks.get("intervene"))
    before = [sections.figures_section(drawn, styles), *others.pop("intervene", [])]
    after = [section for of in others.values() for section in of] + [sections.tables_section(comparison, causal)]
    after.append(sections.method_section(comparison, _labels_of(comparison)))

    def page(view: TokenView | None, *text: Section) -> bytes:
        question = words.question(comparison)
        parts = [*before, losses_section(comparison, view), *text, *after]
        return markup.page(question, question, words.opening(comparison), parts)

    view, why = _view(comparison, options, min(excerpts.MOST_BYTES, markup.MOST_BYTES - len(page(None)) - _MOST_OF_PLACES))
    if view is None:
        return page(None, sections.no_token_section(why)), 0
    return page(view, sections.token_section(view)), view.shown


def _labels_of(comparison: Comparison) -> Mapping[str, Any] | None:
    """The manifest of the labels, if the slices are at hand."""
    return artifacts.read_manifest(comparison.slices / "tokens.parquet") if comparison.slices is not None else None


def _causal(comparison: Comparison, look: Look | None) -> Causal:
    """The causal recall of the models, if the intervention on the page is of these labels and scores."""
    if look is None:
        return {}
    manifest, compared = artifacts.read_manifest(look.folder / "intervene.parquet"), comparison.manifest
    of_labels = labels_identity(manifest["slices"]) == labels_identity(compared["slices"])
    same = {model for model, options in manifest["scores"].items() if compared["scores"].get(model) == options}
    is_alike = of_labels and manifest["models"][0] == comparison.reference in same
    return {model: row for model, row in causal_recall(look.tables).items() if is_alike and model in same}


def _asks_for_text(options: ReportOptions) -> bool:
    return options.slices is not None or bool(numbers(options.sequence) or numbers(options.document))


def _view(comparison: Comparison, options: ReportOptions, most_bytes: int) -> tuple[TokenView | None, str]:
    """The token view, or None and why there is none; an error if text was requested, or a file of it is damaged."""
    reason, remedy = UserError("the slices of this comparison were not found"), f"; {_ADDED}"
    if comparison.slices is not None:
        try:
            view = excerpts.token_view(comparison, numbers(options.sequence), numbers(options.document), most_bytes)
            if view.shown:
                return view, ""
            problem = "no excerpt contains AR hits, or none fits on a page"
            reason, remedy = UserError(problem, remedy="leave out --slices, --sequence, --document"), ""
        except DamagedError:
            raise
        except UserError as error:
            reason = error
    if _asks_for_text(options):
        raise UserError(reason.problem, where=reason.where or comparison.folder, remedy=reason.remedy or "give --slices DIR")
    return None, f"{reason.problem}{remedy}"
