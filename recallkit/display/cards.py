"""Sections for model cards: Markdown below a `model-index` in YAML, which the hub reads from a README.md.

The hub's other format, `.eval_results/*.yaml`, takes results on data sets that their owners have registered there as benchmarks, under the
names of their tasks, and nothing else; a text of the user's own is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.config import VERSION
from recallkit.display.cells import percent
from recallkit.display.tables import MARKDOWN_HEAD, markdown
from recallkit.errors import printable
from recallkit.registry import may_be_hub_id
from recallkit.storage import artifacts
from recallkit.storage.result import KINDS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recallkit.display.exports import Look, Measured


def write_cards(look: Look) -> list[Path]:
    """Writes `card-MODEL.md` for each model of which `look.measured` has figures; returns the files. Raises UserError as `export` does."""
    models = list(dict.fromkeys(each.model for each in look.measured))
    files = {
        f"card-{artifacts.file_slug(model)}.md": _card(look, model, [m for m in look.measured if m.model == model]) for model in models
    }
    with artifacts.adding_members(look.folder, list(files)) as new:
        for name, text in files.items():
            (new / name).write_text(text, encoding="utf-8")
    return [look.folder / name for name in files]


def _card(look: Look, model: str, measured: Sequence[Measured]) -> str:
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="text-generation",
            dataset_type=hub_id if may_be_hub_id(hub_id) else each.dataset,
            dataset_name=each.dataset,
            metric_type=each.metric,
            metric_name=each.name,
            metric_value=float(f"{each.value:.6g}"),
        )
        for each in measured
        for hub_id in [each.dataset.partition(":")[0]]
    ]
    metadata = ModelCardData(model_name=model, eval_results=results).to_yaml()
    tables = [table.markdown().removeprefix(MARKDOWN_HEAD).strip() for table in list(look.terminal_tables)[: look.leading]]
    of_model = [f"- {markdown(each.name)}: {_figure(each)}" for each in measured]
    facts = [f"- {markdown(name)}: {markdown(fact)}" for name, fact in look.method.items()]
    notes = [f"- {markdown(line)}" for line in list(look.lines)[: look.brief]]
    below = [*tables, "\n".join([*facts, *notes]), f"Measured with recallkit {VERSION}{':' if look.command else '.'}"]
    title = KINDS[look.kind].title or "Associative recall"
    parts = [f"---\n{metadata}\n---", f"## {title}", f"{markdown(model)}:", "\n".join(of_model), *filter(None, below)]
    return "\n\n".join([*parts, *([f"    {printable(look.command)}"] if look.command else [])]) + "\n"


def _figure(measured: Measured) -> str:
    """A perplexity, or a share."""
    return f"{measured.value:,.2f}" if measured.metric == "perplexity" else percent(measured.value)
