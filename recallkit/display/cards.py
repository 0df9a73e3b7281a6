"""Sections for model cards: Markdown below a `model-index` in YAML, which the hub reads from a
README.md.

The hub's other format, `.eval_results/*.yaml`, takes results on data sets that their owners have
registered there as benchmarks, under the names of their tasks, and nothing else; a text of the
user's own is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.config import VERSION
from recallkit.display.cells import percent
from recallkit.display.tables import MARKDOWN_HEAD, markdown
from recallkit.errors import printable
from recallkit.registry import may_be_hub_id
from recallkit.storage import artifacts, hashing
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from huggingface_hub import EvalResult

    from recallkit.display.views import Measured, ResultView


def write_cards(view: ResultView) -> list[Path]:
    """Writes `card-MODEL.md` for each model of which `view.measured` has figures; returns the
    files.

    Raises UserError as `export` does.
    """
    of_models: dict[str, list[Measured]] = {}
    for measured in view.measured():
        of_models.setdefault(measured.model, []).append(measured)
    files = {
        f"card-{hashing.file_slug(model)}.md": _card(view, model, measured)
        for model, measured in of_models.items()
    }
    with artifacts.adding_members(view.folder, list(files)) as new:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
    return [view.folder / name for name in files]


def _card(view: ResultView, model: str, measured: Sequence[Measured]) -> str:
    from huggingface_hub import ModelCardData

    results = list(map(_result, measured))
    metadata = ModelCardData(model_name=printable(model), eval_results=results).to_yaml()
    tables = list(view.terminal_tables())[: view.leading()]
    printed = [table.markdown().removeprefix(MARKDOWN_HEAD).strip() for table in tables]
    figures = [f"- {markdown(figure.name)}: {_figure(figure)}" for figure in measured]
    facts = [f"- {markdown(name)}: {markdown(fact)}" for name, fact in view.method().items()]
    notes = [f"- {markdown(line)}" for line in list(view.notes())[: view.brief()]]
    parts = [
        f"---\n{metadata}\n---",
        f"## {KINDS[view.kind].title or 'Associative recall'}",
        f"{markdown(model)}:",
        "\n".join(figures),
        *printed,
        "\n".join([*facts, *notes]),
        f"Measured with recallkit {VERSION}{':' if view.command else '.'}",
        f"    {printable(view.command)}" if view.command else "",
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _result(measured: Measured) -> EvalResult:
    """A figure as the hub has it: its data set by the id there, if it may have one."""
    from huggingface_hub import EvalResult

    hub_id = measured.dataset.partition(":")[0]
    return EvalResult(
        task_type="text-generation",
        dataset_type=hub_id if may_be_hub_id(hub_id) else printable(measured.dataset),
        dataset_name=printable(measured.dataset),
        metric_type=measured.metric,
        metric_name=measured.name,
        metric_value=float(f"{measured.value:.6g}"),
    )


def _figure(measured: Measured) -> str:
    """A perplexity, a recall gain in points, or a share."""
    if measured.metric == "perplexity":
        return f"{measured.value:,.2f}"
    if measured.metric == "recall_gain":
        return f"{100 * measured.value:z.1f} points"
    return percent(measured.value)
