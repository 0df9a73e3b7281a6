"""Recall in a training loop: a small sample of text is read by the model as it is, in seconds, and
the table grows by a row."""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.config import BUILTIN_SEQ_LEN
from recallkit.declarations import names
from recallkit.display import console
from recallkit.display.notebook import NotebookResult
from recallkit.errors import UsageError
from recallkit.models.loading import tokenizer_name
from recallkit.models.prefix import prefix_notes
from recallkit.models.spec import one_model
from recallkit.scoring.recorded import record_array
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import hashing, records
from recallkit.storage.journal import Journal
from recallkit.storage.result import read_result
from recallkit.trackers import log_step
from recallkit.tracking.reading import Reading, first_process_first, is_first_process
from recallkit.tracking.run import TrackedRun
from recallkit.tracking.tables import TrackTables, make_tables
from recallkit.tracking.view import TrackView

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

    from recallkit.tracking.reading import Batch

SAMPLE_TOKENS = 20_000
"""Tokens that are read each time."""

METRICS = ("gain", "retained", "ar_nll", "first_nll", "other_nll", "ar_gap")
"""Columns of `TrackTables.track` that are logged, as recall/gain and so on."""


class Tracker(NotebookResult):
    """Follows the recall of a model while it is trained:

        tracker = recallkit.Tracker(sample_tokens=20_000)
        ...
        for batch in tracker.batches(rank, world):   # every few hundred steps, on every process
            tracker.add(batch, nlls_of(model, batch.ids))
        metrics = tracker.log(step)

    The model reads `sample_tokens` of the built-in text, or all of a slice directory (`slices`).
    Its weights are never asked for, so they may be sharded in any way. `track.parquet` in `out` is
    the table of `recallkit track`; `recallkit report OUT` draws it. Printed, a tracker says what
    `recallkit track` would say; `chart()` is the curve, from the second step on.

    `tokenizer`: the model's, in whose tokens the built-in text is then read and counted; slices
    have their own. `bos`: the token that is read before every text, `none`, or None for what the
    tokenizer says. `slice`: slices to follow besides AR hits and other tokens, as `recallkit track
    --slice` takes them. `reference`: a model or recorded NLLs to compare with, read once.
    `writer`: a SummaryWriter of TensorBoard. An `out` that has rows of an earlier part of the run
    is continued; of two processes only one can write there.
    Raises UserError for everything a user can correct.
    """

    def __init__(
        self,
        *,
        sample_tokens: int | None = None,
        slices: str | PathLike[str] | None = None,
        slice: str | Sequence[str] | None = None,  # noqa: A002 - as in `gap`
        reference: Any = None,
        tokenizer: Any = None,
        bos: str | None = None,
        writer: Any = None,
        out: str | PathLike[str] = "track",
        force: bool = False,
    ) -> None:
        for name, value in {"sample_tokens": sample_tokens, "tokenizer": tokenizer}.items():
            if slices is not None and value is not None:
                command = "recallkit slice --tokenizer F --sample 20k"
                remedy = f"leave it out, or slice with it: `{command}`"
                raise UsageError("slices are read as they are", where=name, remedy=remedy)
        folder, self._writer = Path(out), writer
        first = None if reference is None else one_model(reference)
        with first_process_first():
            if slices is None:
                size = SAMPLE_TOKENS if sample_tokens is None else sample_tokens
                slices = _sample(folder, size, tokenizer)
            self._run = TrackedRun(
                Path(slices),
                folder,
                first,
                force=force,
                followed=parse_slices(names(slice), without=()),
            )
            if is_first_process():
                _claim(folder.resolve())
            if first is not None:
                self._run.add_models({None: first})
            self._reading = Reading(self._run.slices, bos)
        self._name = f"run {hashing.digest_json(str(folder.resolve()))[:6]}"
        """Begins the names of its scores, so that runs that share slices do not share them."""
        self.table = make_tables([]).track
        """The rows so far, see `TrackTables`."""
        if is_first_process():
            for line in prefix_notes({"the model": self._reading.prefix}):
                console.note(line)
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
        must call it: the first one measures, the others get {}. `model`, a torch.nn.Module that
        maps ids to logits or a transformers model, reads the text first, whole on this process; it
        is left as it was, in the mode and on the device where it was, and no random number
        generator of torch is moved.
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
            with _restoring_random_state():
                self._reading.read(model)
        nll = self._reading.take()
        if not is_first_process():
            return {}
        step, name = int(step), f"{self._name} step {step}"
        file = record_array(self._run.slices, name, nll, self._reading.prefix)
        self._run.add(step, name, file)
        self._update()
        checkpoint = self._run.checkpoints[step]
        figures = {column: checkpoint.row[column] for column in METRICS}
        if checkpoint.by_slice is not None:
            for row in checkpoint.by_slice.to_dicts():
                figures |= {f"{row['slice']}/{column}": row[column] for column in ("nll", "gain")}
        metrics = {}
        for name, value in figures.items():
            if value is not None:
                scale = 100 if name.endswith(("gain", "retained")) else 1  # points, per cent
                metrics[f"recall/{name}"] = scale * value
        return metrics

    def _update(self) -> None:
        """Writes the tables of what is measured, and shows them from now on."""
        tables = self._run.write()
        self.table = tables.track
        view = TrackView(self._run.out, tables)
        self.show_as(view.print, lambda: list(view.display_tables.values()), view.figures)

    def _continue(self) -> None:
        """Takes over the rows of an earlier part of the run whose scores exist."""
        manifest, tables = read_result(records.Track, TrackTables, self._run.out)
        for row, name in zip(tables.track.to_dicts(), manifest["score_files"], strict=True):
            file = self._run.slices / "scores" / name
            if row["step"] is not None and file.is_file():
                self._run.add(row["step"], row["model"], file)
        self._update()


@functools.cache
def _claim(folder: Path) -> None:
    """Raises UserError where another process follows a run in a folder; else none can, until this
    one ends."""
    journal = Journal(folder / "track.parquet", {})
    journal.__enter__()
    atexit.register(journal.__exit__)


def _sample(folder: Path, num_tokens: int, tokenizer: Any) -> Path:
    """The first tokens of the built-in text as a slice directory, made where it is missing: in
    tokens of the built-in tokenizer, or of another, with which the training text is counted."""
    from recallkit import builtin, counting, slicing

    name, counts = tokenizer_name(tokenizer), folder / "counts.duckdb"
    if name is None:
        counts = builtin.counts()
    else:
        counting.count(dataclasses.replace(builtin.TRAINING_TEXT, tokenizer=name), counts)
    text = dataclasses.replace(builtin.VALIDATION_TEXT, limit_tokens=num_tokens, tokenizer=name)
    slicing.slice_text(text, folder / "slices", counts=counts, seq_len=BUILTIN_SEQ_LEN)
    return folder / "slices"


@contextlib.contextmanager
def _restoring_random_state() -> Iterator[None]:
    """A block after which torch's generators, those of GPUs included, are where they were."""
    import torch

    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        yield
