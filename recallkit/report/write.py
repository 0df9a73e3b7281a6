"""Makes a page from the results in a folder: finds, reads and draws them, and writes the page atomically."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.config import VERSION
from recallkit.declarations import names, numbers, path
from recallkit.display.chart_theme import check_figures_folder, save_figures
from recallkit.errors import UserError
from recallkit.options import ReportOptions
from recallkit.report import excerpts, page, sections, words
from recallkit.report.found import find_results
from recallkit.storage import artifacts
from recallkit.storage.artifacts import DamagedError
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from recallkit.display.chart_theme import Figure
    from recallkit.report.sections import Section

_OTHERS_QUESTION = "How much do these models, and this text, recall?"
"""Of a page with several kinds of results, but no comparison."""


@dataclass(frozen=True, slots=True)
class Report:
    """What was written. `results`: kind -> the folder where it was found; `excerpts`: number of those shown; `pictures`: files."""

    page: Path
    num_bytes: int
    results: Mapping[str, Path]
    excerpts: int
    pictures: Sequence[Path] = field(default=())

    def to_json(self) -> dict[str, Any]:
        """As plain JSON."""
        return {
            "page": str(self.page),
            "bytes": self.num_bytes,
            "results": {kind: str(folder) for kind, folder in self.results.items()},
            "excerpts": self.excerpts,
            "pictures": [str(path) for path in self.pictures],
        }


def write_report(folder: Path, out: Path | None = None, options: ReportOptions = ReportOptions()) -> Report:
    """Writes the page of the results in `folder`, by default as report.html beside the comparison, atomically.

    Raises UserError if there are no results, too many to choose from, or damaged ones; if text was requested that does not exist;
    and if a file that recallkit did not write would be replaced.
    """
    check_figures_folder(path(options.figures))
    found = find_results(folder, [Path(name) for name in names(options.more)])
    comparison = read_comparison(found["gap"], path(options.slices)) if "gap" in found else None
    if comparison is None and _asks_for_text(options):
        problem = "there is no comparison here, hence no text to show"
        raise UserError(problem, where=folder, remedy="leave out --slices, --sequence, --document")
    target = out or (comparison.folder if comparison else folder) / "report.html"
    artifacts.check_replaceable(target, page.HEAD)
    content, figures, num_excerpts = _compose(comparison, found, options)
    pictures = save_figures(figures, Path(options.figures)) if options.figures is not None else []
    with artifacts.adding(target) as temporary:
        temporary.write_bytes(content)
    return Report(target, len(content), found, num_excerpts, pictures)


def _asks_for_text(options: ReportOptions) -> bool:
    return options.slices is not None or bool(numbers(options.sequence) or numbers(options.document))


def _compose(comparison: Comparison | None, found: Mapping[str, Path], options: ReportOptions) -> tuple[bytes, list[Figure], int]:
    """The page's bytes, its charts, and how many excerpts of text it shows."""
    if comparison is None:
        others, figures = _others(found)
        title = "; ".join(KINDS[kind].title for kind in found)
        if len(found) > 1:
            return page.lay_out(title, _OTHERS_QUESTION, "", others, VERSION), figures, 0
        [question], opening = [KINDS[kind].question for kind in found], others[0].opening
        alone = [replace(others[0], opening=""), *others[1:]]
        return page.lay_out(title, question, opening, alone, VERSION), figures, 0
    labels = artifacts.read_manifest(comparison.slices / "tokens.parquet") if comparison.slices is not None else None
    words.check_facts(comparison, labels)
    tokens, num_excerpts = _tokens(comparison, options, excerpts.MOST_BYTES)  # first, because it fails if the requested text does not exist
    from recallkit.attribution.charts import figures as draw

    totals, own = comparison.totals, draw(comparison)
    others, figures = _others(found)
    first, rest = sections.first_figures(comparison, own)
    opening, before = sections.results(comparison, totals, first), sections.gap_section(comparison, rest)
    after = sections.method_section(comparison, totals, labels)

    def lay_out(text: Section) -> bytes:
        title = f"Recall in the gap to {comparison.reference}"
        return page.lay_out(title, words.question(comparison), opening, [before, text, *others, after], VERSION)

    content, room = lay_out(tokens), excerpts.MOST_BYTES
    while num_excerpts and len(content) > page.MOST_BYTES:
        room -= len(content) - page.MOST_BYTES
        tokens, num_excerpts = _tokens(comparison, options, room)
        content = lay_out(tokens)
    return content, [*own, *figures], num_excerpts


def _others(found: Mapping[str, Path]) -> tuple[list[Section], list[Figure]]:
    """The sections of results other than a comparison, and their charts."""
    made = [sections.OTHERS[kind](place) for kind, place in found.items() if kind != "gap"]
    return [section for parts, _ in made for section in parts], [figure for _, drawn in made for figure in drawn]


def _tokens(comparison: Comparison, options: ReportOptions, most_bytes: int) -> tuple[Section, int]:
    """The token view, or why there is none; an error if text was requested, or a file of it is damaged."""
    reason = UserError("the slices of this comparison were not found")
    if comparison.slices is not None:
        try:
            view = excerpts.token_view(comparison, numbers(options.sequence), numbers(options.document), most_bytes)
            excerpts.give_back_memory()  # drawing needs as much
            if view.shown:
                return sections.token_section(view, "DIR"), view.shown
            reason = UserError("no excerpt contains AR hits, or none fits on a page")
        except DamagedError:
            raise
        except UserError as error:
            reason = error
    if _asks_for_text(options):
        raise UserError(reason.problem, where=reason.where or comparison.folder, remedy=reason.remedy or "give --slices DIR")
    return sections.no_token_section(reason.problem, "DIR"), 0
