"""Lists of models, kinds of text and recall tasks."""

from dataclasses import dataclass
from typing import Annotated, Any

from recallkit import config
from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Option, Options
from recallkit.errors import UsageError

Rows = list[tuple[str, str]]


def _listed(rows: Rows) -> Outcome[Rows]:
    from recallkit.display.console import print_list

    return Outcome(value=lambda: rows, show=lambda: print_list(rows), json=lambda: [{"name": n, "description": d} for n, d in rows])


@dataclass(frozen=True, kw_only=True)
class ListModels(Options):
    """What is said of models."""

    describe: Annotated[bool, Option("What mixers and zoo models cost: parameters, state, operations.")] = False
    width: Annotated[int, Option("With --describe: channels of the mixers, a multiple of 64.", least=64, most=1 << 16)] = 1024
    seq_len: Annotated[int, Option("With --describe: tokens of the sequence.", least=1, most=config.LONGEST)] = 2048
    presets: Annotated[bool, Option("The papers' architectures: printed and counted parameters, state, operations.")] = False


@command("models", ListModels, examples=("recallkit models", "recallkit models --describe --width 1024 --seq-len 2048"))
def models(asked: ListModels) -> Outcome[Any]:
    """List the models that can be scored, a line each; with --describe what they and every mixer cost."""
    from recallkit.models.costs_view import print_costs, print_presets
    from recallkit.models.describe import describe_mixers, describe_presets, describe_zoo
    from recallkit.models.loading import describe_models

    if asked.presets:
        rows = describe_presets()
        return Outcome(value=lambda: rows, show=lambda: print_presets(rows), json=lambda: rows)
    if not asked.describe:
        return _listed(describe_models())
    if asked.width % 64:
        raise UsageError(f"{asked.width} channels", where="--width", remedy="give a multiple of 64")
    mixers, zoo_models = describe_mixers(asked.width, asked.seq_len), describe_zoo()
    described = {"width": asked.width, "seq_len": asked.seq_len, "mixers": mixers, "models": zoo_models}
    return Outcome(
        value=lambda: described, show=lambda: print_costs(mixers, zoo_models, asked.width, asked.seq_len), json=lambda: described
    )


@command("sources", Options, examples=("recallkit sources",))
def sources(_: Options) -> Outcome[Rows]:
    """List the kinds of text that can be read, a line each."""
    from recallkit.text.corpus import describe_sources

    return _listed(describe_sources())


@command("tasks", Options, examples=("recallkit tasks",))
def tasks(_: Options) -> Outcome[Rows]:
    """List the recall tasks, a line each."""
    from recallkit.recall.run import describe_tasks

    return _listed(describe_tasks())
