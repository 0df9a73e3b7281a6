"""What there is, `models`, `sources` and `tasks`; and this machine, `doctor`."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Options, argument, option
from recallkit.options import MODEL_SYNTAX, AnyModels

Rows = list[tuple[str, str]]

WIDTH, SEQ_LEN = 1024, 2048
"""Channels and tokens for which the costs of mixers are described."""


def _list_of(title: str, rows: Rows) -> Outcome[Rows]:
    from recallkit.display.console import print_list

    described = [{"name": name, "description": description} for name, description in rows]
    return Outcome(lambda: rows, lambda full: print_list(title, rows), lambda: described)


@dataclass(frozen=True)
class ListModels(Options):
    """What is said of models."""

    models: AnyModels | None = argument(
        f"With --describe: models ({MODEL_SYNTAX}), or tokenizers alone.", metavar="MODEL"
    )
    _: KW_ONLY
    describe: bool = option("Parameters, state and operations of mixers and zoo models.", False)
    presets: bool = option(
        "The papers' architectures: printed and counted parameters, state, operations.", False
    )


@command(
    "models",
    ListModels,
    examples=(
        "recallkit models",
        "recallkit models --describe path/to/mamba",
        "recallkit models --describe",
    ),
    prints=("full",),
)
def models(options: ListModels) -> Outcome[Any]:
    """List the models that can be scored, one per line; with --describe, the costs of mixers and
    zoo models.

    `--describe MODEL` shows what a model reads: its context, its tokenizer, the token before every
    text, and the token that ends documents.
    """
    from recallkit.models import describe
    from recallkit.models.loading import describe_models
    from recallkit.models.spec import list_models

    if options.presets:
        presets = describe.describe_presets()
        return Outcome(
            lambda: presets,
            lambda full: describe.print_presets(presets, full=full),
            lambda: presets,
        )
    if options.models is not None:
        inputs = describe.describe_inputs(list_models(options.models))
        return Outcome(lambda: inputs, lambda full: describe.print_inputs(inputs), lambda: inputs)
    if not options.describe:
        return _list_of("What can be given as MODEL; NAME=MODEL names it.", describe_models())
    mixers, zoo_models = describe.describe_mixers(WIDTH, SEQ_LEN), describe.describe_zoo()
    described = {"width": WIDTH, "seq_len": SEQ_LEN, "mixers": mixers, "models": zoo_models}

    def show(full: bool) -> None:
        describe.print_costs(mixers, zoo_models, WIDTH, SEQ_LEN, full=full)

    return Outcome(lambda: described, show, lambda: described)


@command("sources", Options, examples=("recallkit sources",))
def sources(_: Options) -> Outcome[Rows]:
    """List the kinds of text that can be read, one per line."""
    from recallkit.text.sources import describe_sources

    return _list_of(
        "What can be given as SOURCE to `count`, `slice` and `profile`.", describe_sources()
    )


@command("tasks", Options, examples=("recallkit tasks",))
def tasks(_: Options) -> Outcome[Rows]:
    """List the recall tasks of `eval-recall` and the synthetic ones of `mqar` and `train`, one per
    line."""
    from recallkit import plugins
    from recallkit.recall.run import describe_tasks
    from recallkit.synthetic.tasks import describe_tasks as describe_synthetic

    synthetic = [
        (name, f"synthetic: {description.rstrip('.')}")
        for name, description in describe_synthetic()
    ]
    rows = [*describe_tasks(), *synthetic, *plugins.describe("synthetic task")]
    return _list_of(
        "What `eval-recall --tasks` takes; synthetic ones: `mqar --task`, `train --task`.", rows
    )


_WIDEST = 23
"""Characters of the longest name of a fact: doctor prints each one when it is known."""


@command("doctor", Options, examples=("recallkit doctor", "recallkit doctor --json"))
def doctor(_: Options) -> Outcome[Rows]:
    """Print what a bug report needs: versions, devices, memory, folders and caches, settings;
    without secrets."""
    from recallkit.display.console import print_line, print_rows
    from recallkit.doctor.facts import describe_installation

    def show(full: bool) -> None:
        print_line("What a bug report needs.\n")
        print_rows(describe_installation(), _WIDEST)

    def described() -> list[dict[str, str]]:
        rows = describe_installation()
        return [{"name": name, "description": description} for name, description in rows]

    return Outcome(lambda: list(describe_installation()), show, described)
