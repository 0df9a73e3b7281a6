"""`train`: a model on text, or a sweep of small models on a synthetic task."""

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Literal, Union

from recallkit.commands.adapter import ANSWER, Outcome, command
from recallkit.declarations import File, Options, argument, option, parameters_of, path
from recallkit.errors import UsageError
from recallkit.options import (
    MANY_DEVICES,
    SWEEPS,
    SweepOptions,
    TextOptions,
    TextTrainingOptions,
    WritingOptions,
    device_option,
    out_option,
)

if TYPE_CHECKING:
    from recallkit.training.tables import TradeoffTables, TrainingTables


@dataclass(frozen=True)
class _Model(Options):
    """What is trained on text."""

    model: File | None = argument(
        (
            "A preset of the papers (`recallkit models --presets`), zoo:NAME, or a .toml file with "
            "its layers; leave it out with --task."
        ),
        metavar="MODEL",
    )


@dataclass(frozen=True)
class Train(TextTrainingOptions, SweepOptions, WritingOptions, TextOptions, _Model):
    """What is trained, and on what."""

    default_split: str = field(default="train", init=False)
    _: KW_ONLY
    boundary: Literal["pack", "document"] = field(default="pack", init=False)
    limit_tokens: None = field(default=None, init=False)
    task: str | None = option(
        "Train small models on this task, with its options: mqar, overwriting, "
        "mqar,filler=random, FILE.py:FUNCTION ... "
        "(see `recallkit tasks`).",
        metavar="TASK",
    )
    preset: Literal["cpu", "zoology:2", "zoology:6", "based:2", "based:3"] = option(
        "A small sweep for a CPU, or the sweep of a paper's figure, for a GPU (docs/train.md).",
        "cpu",
        needs="task",
        panel=SWEEPS,
    )
    out: File = out_option(value="train")
    device: str = device_option()
    workers: int = option(
        (
            "With --task: processes that share the runs, assigned to GPUs in turn. Results do not "
            "change."
        ),
        1,
        least=1,
        most=1024,
        needs="task",
        panel=MANY_DEVICES,
    )

    def __post_init__(self) -> None:
        """Raises UsageError also for neither a model nor a task, for both, and for options of text
        with a task."""
        super().__post_init__()
        if os.environ.get("RANK", "0") != "0":  # of torchrun's processes the first one logs
            object.__setattr__(self, "log_to", None)
        if (self.model is None) == (self.task is None):
            problem = "a model and a task" if self.task else "neither a model nor a task"
            raise UsageError(
                problem, where="MODEL", remedy="name a model and its text, or give --task"
            )
        if self.task is not None:
            text = parameters_of(TextTrainingOptions).keys() - parameters_of(SweepOptions).keys()
            text |= parameters_of(TextOptions).keys() & parameters_of(Train).keys()
            if wrong := sorted(text & self.not_usual().keys()):
                raise UsageError(
                    "an option of text",
                    where=f"--{wrong[0].replace('_', '-')}",
                    remedy="leave it out",
                )
        if (
            self.model is not None
            and isinstance(self.learning_rates, list)
            and len(self.learning_rates) > 1
        ):
            raise UsageError(
                "several rates for one model", where="--learning-rates", remedy="give one"
            )


@command(
    "train",
    Train,
    examples=(
        "recallkit train zoo:mamba demo:train --tokens 3M -o mamba",
        (
            "recallkit train based-360m 'pile/*.jsonl.zst' --tokenizer gpt2.json --tokens 10B "
            "--micro-batch 16 --compile -o based"
        ),
        "recallkit train --task mqar --figures figures",
        (
            "recallkit train --task overwriting --mixers attention,delta_net --widths 32,64 "
            "--seq-len 96 --test-pairs 4,16,32 -o overwriting"
        ),
    ),
    prints=ANSWER,
)
def train(options: Train) -> Outcome[Union["TrainingTables", "TradeoffTables"]]:
    """Train a model on text, or sweep small models over a synthetic task to weigh accuracy against
    bytes of state; resumes.

    Columns: see `TrainingTables` and `TradeoffTables`.
    """
    out = path(options.out)
    if options.model is None:
        from recallkit.training.run import plan_sweep
        from recallkit.training.view import SweepView

        sweep = plan_sweep(options.preset, options.task or "", options, out, options.device)
        tradeoff = sweep.train(workers=options.workers, force=options.force)
        return Outcome.from_views(tradeoff, lambda: SweepView(sweep.folder, tradeoff))
    from recallkit import builtin
    from recallkit.training.processes import is_first
    from recallkit.training.run import train_text
    from recallkit.training.view import TrainingView

    text = builtin.or_builtin(options, builtin.TRAINING_TEXT)
    tables = train_text(
        str(options.model), text, options, out, device=options.device, force=options.force
    )
    if not is_first():
        return Outcome(lambda: tables, lambda full: None, dict)
    return Outcome.from_views(tables, lambda: TrainingView(out, tables))
