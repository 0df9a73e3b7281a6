"""Recall in a training loop: a small sample of text is read by the model as it is, in seconds, and
the table grows by a row."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import BUILTIN_SEQ_LEN
from recallkit.display import console
from recallkit.display.notebook import Shown
from recallkit.errors import UsageError, UserError
from recallkit.models.prefix import prefix_notes
from recallkit.models.spec import one_model
from recallkit.options import ScoringOptions
from recallkit.scoring.recorded import record_array
from recallkit.storage import artifacts
from recallkit.storage.result import read_tables
from recallkit.trackers.open_runs import log_step
from recallkit.tracking.reading import Reading, process_group
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import TrackTables, make_tables
from recallkit.tracking.view import look

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike

    from recallkit.tracking.reading import Batch

SAMPLE_TOKENS = 20_000
"""Tokens that are read each time."""

METRICS = {
    "recall/gain": ("gain", 100.0),
    "recall/retained": ("retained", 100.0),
    "recall/ar_nll": ("ar_nll", 1.0),
    "recall/first_nll": ("first_nll", 1.0),
    "recall/other_nll": ("other_nll", 1.0),
    "recall/ar_gap": ("ar_gap", 1.0),
}
"""What is logged -> the column of `TrackTables.track`, and by what it is multiplied: points, per
cent, nats per token."""


class Tracker(Shown):
    """Follows the recall of a model while it is trained:

        tracker = recallkit.Tracker(sample_tokens=20_000)
        ...
        for batch in tracker.batches(rank, world):   # every few hundred steps, on every process
            tracker.add(batch, nlls_of(model, batch.ids))
        metrics = tracker.log(step)

    The model reads `sample_tokens` of the built-in text, or a slice directory (`slices`) as a whole.
    Its weights are never asked for, so they may be sharded in any way. `track.parquet` in `out` is
    the table of `recallkit track`; `recallkit report OUT` draws it. Printed, a tracker says what
    `recallkit track` would say; `chart()` is the curve, from the second step on.

    `tokenizer`: the model's, where it is not that of the slices: its NLLs are then aligned to the
    slices' tokens. `bos`: the token that it reads before every text, `none`, or None for what its
    tokenizer says. `reference`: a model or recorded NLLs to compare with, read once. `writer`: a
    SummaryWriter of TensorBoard. An `out` that has rows of an earlier part of the run is continued.
    Raises UserError for everything a user can correct.
    """

    def __init__(
        self,
        *,
        sample_tokens: int | None = None,
        slices: str | PathLike[str] | None = None,
        reference: Any = None,
        tokenizer: Any = None,
        bos: str | None = None,
        writer: Any = None,
        out: str | PathLike[str] = "track",
        device: str = "auto",
        force: bool = False,
    ) -> None:
        if sample_tokens is not None and slices is not None:
            remedy = "leave it out, or draw slices of so many: `recallkit slice --sample 20k`"
            raise UsageError("slices are read as they are", where="sample_tokens", remedy=remedy)
        if sample_tokens is not None and (type(sample_tokens) is not int or sample_tokens < 1):
            problem = f"{sample_tokens!r} is not a number of tokens"
            raise UsageError(problem, where="sample_tokens", remedy="give one such as 20_000")
        folder = Path(out)
        first = None if reference is None else one_model(reference)
        with _first_process_first():
            if slices is None:
                slices = _sample(folder / "slices", sample_tokens or SAMPLE_TOKENS)
            self._run = TrackedRun(Path(slices), folder, first, ScoringOptions(device=device), force=force)
            self._run.add_reference()
        self._reading, self._writer = Reading(self._run.slices, tokenizer, bos), writer
        for line in prefix_notes({"the model": self._reading.prefix}):
            console.note(line)
        self._name = f"run {artifacts.digest_json(str(folder.resolve()))[:6]}"
        """Begins the names of its scores, so that runs that share slices do not share them."""
        self.table = make_tables([]).track
        """The rows so far, see `TrackTables`."""
        if not force and (folder / "track.parquet").exists():
            self._continue()

    def batches(self, rank: int = 0, world: int = 1, size: int = 8) -> Iterator[Batch]:
        """What the model reads: batches of `size` sequences, whose `ids` are int64 (b, t).

        `rank` of `world` processes gets every `world`-th of them, each as many; without them every
        process gets all. A shorter sequence is filled up with 0 at its end.
        """
        return self._reading.batches(rank, world, size)

    def add(self, batch: Batch, nlls: Any) -> None:
        """Takes the NLLs of a batch, a tensor or an array (b, t - 1) in nats: -ln p of each id but
        the first of its sequence, given those before it. Raises UsageError for another shape."""
        self._reading.add(batch, nlls)

    def log(self, step: int, model: Any = None) -> dict[str, float]:
        """Measures what was added after `step` steps; returns METRICS by name, and logs them to the
        runs that are open: of trackio, W&B and MLflow, and to `writer`.

        The recall gain is in points, what is retained in per cent, all else in nats per token;
        `recall/retained` and `recall/ar_gap` need a reference. All columns and intervals are in
        `table`. A step that was logged before is replaced. With torch.distributed every process
        must call it: the first one measures, the others get {}. `model`, a torch.nn.Module that maps
        ids to logits or a transformers model, reads the text first, whole on this process; it is
        left as it was, in the mode and on the device where it was, and no random number generator
        of torch is moved.
        """
        metrics = self._measure(step, model)
        if metrics:
            log_step(metrics, step, self._writer)
        return metrics

    def attach(self, trainer: Any, every: int | None = None) -> None:
        """Logs the model of a `transformers.Trainer` every so many steps; without a number,
        whenever the Trainer evaluates.

        The Trainer logs the metrics as its own, to its `state.log_history` and wherever it reports
        to.
        """
        from transformers import TrainerCallback

        def log(args: Any, state: Any, control: Any, model: Any, **_: Any) -> None:
            if every is not None and state.global_step % every:
                return
            if metrics := self._measure(state.global_step, model):
                # Logging settles what is due, and the Trainer's loss of this step is still to come.
                is_due = control.should_log
                trainer.log(metrics)
                control.should_log = is_due

        callback = TrainerCallback()
        setattr(callback, "on_evaluate" if every is None else "on_step_end", log)
        trainer.add_callback(callback)

    def _measure(self, step: int, model: Any) -> dict[str, float]:
        """See `log`, which this does without logging."""
        if isinstance(step, bool) or not hasattr(step, "__index__") or step < 0:
            problem = f"{step!r} is not a step"
            raise UsageError(problem, where="step", remedy="give the number of steps done")
        if model is not None:
            with _random_state_kept():
                self._reading.read(model, self._run.scoring.device)
        nll = self._reading.take()
        if not _is_first_process():
            return {}
        step, name = int(step), f"{self._name} step {step}"
        file = record_array(self._run.slices, name, nll, self._reading.prefix)
        self._run.add_file(step, name, file)
        self._update()
        row = self._run.checkpoints[step].row
        return {name: scale * row[column] for name, (column, scale) in METRICS.items() if row[column] is not None}

    def _update(self) -> None:
        """Writes the tables of what is measured, and shows them from now on."""
        tables = self._run.write()
        self.table = tables.track
        shown = functools.cache(lambda: look(self._run.out, tables))
        self.show_as(
            lambda: shown().print(),
            lambda: list(shown().shown.values()),
            lambda models: shown().figures(models),
        )

    def _continue(self) -> None:
        """Takes over the rows of an earlier part of the run whose scores exist."""
        folder = self._run.out
        names = artifacts.read_manifest(folder / "track.parquet")["score_files"]
        rows = read_tables(TrackTables, folder).track.to_dicts()
        for row, name in zip(rows, names, strict=True):
            file = self._run.slices / "scores" / name
            if row["step"] is not None and file.is_file():
                self._run.add_file(row["step"], row["model"], file)
        self._update()


def _sample(folder: Path, num_tokens: int) -> Path:
    """The first tokens of the built-in text as a slice directory, made where it is missing."""
    from recallkit import builtin, slicing

    text = dataclasses.replace(builtin.VALIDATION_TEXT, limit_tokens=num_tokens)
    try:
        slicing.slice_text(text, folder, counts=builtin.counts(), seq_len=BUILTIN_SEQ_LEN)
    except UserError as error:
        raise UserError(error.problem, where=error.where, remedy="choose another `out`") from error
    return folder


def _is_first_process() -> bool:
    group = process_group()
    return group is None or group.get_rank() == 0


@contextlib.contextmanager
def _first_process_first() -> Iterator[None]:
    """A block that the first process runs before the others, which then find its files."""
    group = process_group()
    if not _is_first_process():
        group.barrier()
    try:
        yield
    finally:
        if group is not None and _is_first_process():
            group.barrier()


@contextlib.contextmanager
def _random_state_kept() -> Iterator[None]:
    """A block after which torch's generators, those of GPUs included, are where they were."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
