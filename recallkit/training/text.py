"""A model trained on text: windows that are read once each, in an order of the seed; checkpoints; a curve; resumed where it was saved."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import distributed, nn

from recallkit import events
from recallkit.declarations import amount
from recallkit.display.notebook import Shown
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.devices import choose_device, memory_errors
from recallkit.options import TextOptions, TextTrainingOptions
from recallkit.storage import artifacts, schemas
from recallkit.storage.result import Result
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText
from recallkit.text.records import Position
from recallkit.text.sequences import pack_sequences
from recallkit.text.tokenizers import write_tokenizer
from recallkit.training import lists, recipes
from recallkit.training.loop import Trainer, join_processes, machine, made_model

if TYPE_CHECKING:
    from pathlib import Path

    import polars as pl
    from torch import Tensor

    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.language_model import LanguageModel
    from recallkit.storage.journal import Journal
    from recallkit.training.loop import Recipe

POINTS = 50
"""Of the curve, each the mean of the steps since the one before."""
SAVED_EVERY_SECONDS = 300
TRAINING = "training"


@dataclass(frozen=True, slots=True, repr=False)
class TrainingTables(Shown):
    """A model trained on text. `training`: a row per point of the curve; `loss_nats` is the mean over the steps since the point before.

    Every window of text is read once, so the loss is that of text which the model has not read yet. `lists_4`, `lists_16`: accuracy on
    test lists of so many pairs, of models that are trained on lists, too.
    """

    training: pl.DataFrame


@dataclass(frozen=True, slots=True)
class TextTraining:
    """What is trained, on what and how: all that determines the weights, and, from `device` on, where.

    `num_tokens`: predictions to train on; None for the whole text. `checkpoint_tokens`: those between two checkpoints; None for one at
    the end.
    """

    name: str
    config: ArchitectureConfig
    recipe: Recipe
    text: TextOptions
    seq_len: int
    num_tokens: int | None
    seed: int = 0
    checkpoint_tokens: int | None = None
    device: str = "auto"
    micro_batch: int | None = None
    is_compiled: bool = False

    def run(self, out: Path, *, force: bool = False) -> TrainingTables:
        """Trains, or takes up an interrupted run; writes checkpoints `out`/checkpoint-STEP and the curve. Raises UserError."""
        opened = OpenText(self.text)
        made = replace(self, config=replace(self.config, vocab_size=opened.tokenizer.vocab_size))
        return made._run(opened, out, force=force)

    def _run(self, opened: OpenText, out: Path, *, force: bool) -> TrainingTables:
        device = join_processes(choose_device(self.device))
        options = {
            "model": self.name,
            "config": json.loads(zoo.config_json(self.config)),
            "recipe": {**asdict(self.recipe), "betas": list(self.recipe.betas)},
            "seed": self.seed,
            "seq_len": self.seq_len,
            "text": opened.identity(),
        }
        result = Result(out / f"{TRAINING}.parquet", TRAINING, options, force=force)
        if result.reused() is not None:
            return TrainingTables(schemas.read_frame(result.path))
        is_first = not distributed.is_initialized() or distributed.get_rank() == 0  # only it writes
        timings = Timings()
        with result.journal() if is_first else contextlib.nullcontext() as journal:
            if journal is not None and not journal.resumed:
                _write_windows(opened, self.seq_len, journal.part(0))
                journal.commit({"step": 0})
            if distributed.is_initialized():
                distributed.barrier()
            windows = _read_windows(result.journal().part(0), self.seq_len, opened)
            num_steps = self._num_steps(len(windows))
            trainer = Trainer(self._new_model(device), self.recipe, micro_batch=self.micro_batch, is_compiled=self.is_compiled)
            run = _Run(self, trainer, windows, num_steps, out, opened, journal)
            run.take_up(result.journal().part)
            with timings.stage("training", resumed=run.step > 0) as stage, memory_errors():
                stage.amounts["tokens"] = run.train()
            tables = TrainingTables(schemas.frame_of("training/training", run.curve))
            if journal is not None:
                facts = {"parameters": trainer.model.num_parameters(), "num_steps": num_steps, "machine": machine(device)}
                result.write_tables(tables, {**facts, "tokens": run.tokens(num_steps), "names": opened.names()}, timings)
                journal.finish()
        return tables

    def _new_model(self, device: torch.device) -> LanguageModel:
        """MLPs begin at zero, so that blocks begin as their mixers."""
        model = made_model(self.seed, self.config)
        for block in model.blocks:
            if (down := getattr(block.mlp, "down", None)) is not None:
                nn.init.zeros_(down.weight)
        return model.to(device)

    def rows_before(self, step: int) -> int:
        """Windows of text that the steps before this one read."""
        return step * self.recipe.batch - (step // lists.EVERY if self.recipe.lists else 0)

    def _num_steps(self, num_windows: int) -> int:
        """As many steps as the windows allow. Raises UserError where they allow none, or where there is less text than was asked for."""
        tokens = num_windows * self.seq_len
        if self.num_tokens is not None and tokens + self.seq_len <= self.num_tokens:
            where, remedy = f"--tokens {self.num_tokens:,}", f"give more text, or at most --tokens {tokens}"
            raise UserError(f"the text has {tokens:,}", where=where, remedy=remedy)
        steps = num_windows // self.recipe.batch
        while self.rows_before(steps + 1) <= num_windows:
            steps += 1
        if not steps:
            problem = f"{num_windows:,} sequences of {self.seq_len:,} are fewer than the {self.recipe.batch:,} of a step"
            raise UserError(problem, where="--tokens", remedy="give more text, or a smaller --batch or --seq-len")
        return steps


def plan_text(model: str, text: TextOptions, asked: TextTrainingOptions, *, device: str = "auto") -> TextTraining:
    """The training of a model by its name, its recipe changed by the choices. Raises UserError for an unknown model."""
    found = recipes.find(model, asked.seq_len)
    recipe = found.recipe
    if rates := asked.learning_rates:
        rate = rates[0] if isinstance(rates, Sequence) else rates
        scale = rate / recipe.learning_rate
        recipe = replace(recipe, learning_rate=rate, lowest=recipe.lowest * scale, muon=recipe.muon * scale)
    recipe = replace(recipe, batch=asked.batch or recipe.batch, lists=recipe.lists and not asked.no_lists)
    tokens = amount(asked.tokens)
    read = {each.name: getattr(text, each.name) for each in fields(TextOptions) if each.init}
    return TextTraining(
        found.name,
        found.config,
        recipe,
        TextOptions(**{**read, "boundary": "pack", "limit_tokens": tokens}),
        found.seq_len,
        tokens,
        asked.seed,
        amount(asked.checkpoint_every),
        device,
        asked.micro_batch,
        asked.compiled,
    )


def _write_windows(opened: OpenText, seq_len: int, path: Path) -> None:
    """Writes the packed text, (n, seq_len + 1) ids in the order of the text; windows share the id at which one ends and the next begins."""
    blocks = pack_sequences(
        opened.encoded(Position()),
        end_token_id=opened.tokenizer.end_token_id,
        seq_len=seq_len,
        boundary="pack",
        limit_predictions=opened.options.most_tokens,
    )
    done = 0
    with artifacts.replacing(path) as temporary, temporary.open("wb") as file, progress("packing", total=opened.most_tokens) as show:
        for block in blocks:
            whole = len(block.ids) - len(block.ids) % (seq_len + 1)  # the last window may be shorter
            file.write(block.ids[:whole].astype(_dtype(opened)).tobytes())
            done += whole // (seq_len + 1) * seq_len
            show(done, opened.estimated_tokens(done))


def _read_windows(path: Path, seq_len: int, opened: OpenText) -> np.ndarray:
    if not path.stat().st_size:
        return np.empty((0, seq_len + 1), _dtype(opened))
    return np.memmap(path, _dtype(opened), "r").reshape(-1, seq_len + 1)


def _dtype(opened: OpenText) -> type:
    return np.uint16 if opened.tokenizer.vocab_size <= 1 << 16 else np.uint32


class _Run:
    """A training in progress: its step, its curve. Only the first process has a `journal`, and writes."""

    def __init__(
        self,
        asked: TextTraining,
        trainer: Trainer,
        windows: np.ndarray,
        num_steps: int,
        out: Path,
        opened: OpenText,
        journal: Journal | None,
    ) -> None:
        self.asked, self.trainer, self.windows, self.num_steps = asked, trainer, windows, num_steps
        self.out, self.opened, self.journal = out, opened, journal
        self.order = np.random.default_rng(asked.seed).permutation(len(windows))
        self.step = 0
        self.curve: list[dict[str, Any]] = []
        self.losses: list[float] = []

    def tokens(self, step: int) -> int:
        """Predictions of text before a step."""
        return self.asked.rows_before(step) * self.asked.seq_len

    def take_up(self, part: Any) -> None:
        """Restores what an interrupted run has saved. Raises UserError where that is damaged."""
        state = self.journal.state if self.journal is not None else None
        if distributed.is_initialized():
            given = [state]
            distributed.broadcast_object_list(given)
            state = given[0]
        if not state or "saved" not in state:
            return
        from safetensors.torch import load_file

        path = part(state["saved"])
        try:
            self.trainer.restore(load_file(path))
        except Exception as error:
            raise UserError("unfinished work is damaged", where=path, remedy="begin again with --force") from error
        self.step, self.curve, self.losses = state["step"], state["curve"], state["losses"]
        if self.journal is not None:
            self.journal.note_resumed(self.step, "steps")

    def train(self) -> int:
        """Trains to the end; returns the tokens of this process's steps."""
        first, saved = self.step, time.monotonic()
        if self.step == 0 and self.asked.recipe.lists:
            self._learn_lists()
        points = {max(1, round(self.num_steps * point / POINTS)) for point in range(1, POINTS + 1)}
        checkpoints = self._checkpoint_steps()
        showing = progress(f"training {self.asked.name}", total=self.tokens(self.num_steps))
        with showing as show:
            show(self.tokens(self.step))
            while self.step < self.num_steps:
                share = self.asked.recipe.share(self.step, self.num_steps)
                loss, _ = self.trainer.step(*self._batch(), share)
                self.step += 1
                if not math.isfinite(loss):
                    remedy = "choose lower --learning-rates, and --force"
                    raise UserError(f"the loss is {loss} at step {self.step:,}", where=self.asked.name, remedy=remedy)
                self.losses.append(loss)
                if self.step in points:
                    self._add_point(share)
                if self.step in checkpoints:
                    self._write_checkpoint()
                if self.step in checkpoints or time.monotonic() - saved > SAVED_EVERY_SECONDS:
                    self._save()
                    saved = time.monotonic()
                show(self.tokens(self.step))
        return self.tokens(self.num_steps) - self.tokens(first)

    def _learn_lists(self) -> None:
        showing = progress(f"teaching {self.asked.name} lists", total=lists.STEPS, unit="steps")
        with showing as show:
            for step in lists.learn_lists(self.trainer, self.asked.seed):
                show(step)
        accuracy = zip(lists.TEST_PAIRS, lists.accuracies(self.trainer), strict=True)
        shown = ", ".join(f"{share:.1%} of {pairs} pairs" for pairs, share in accuracy)
        events.note(f"{self.asked.name} answers {shown} in lists")
        self.trainer.optimisers = Trainer(self.trainer.model, self.asked.recipe).optimisers  # text begins with new ones

    def _batch(self) -> tuple[Tensor, Tensor]:
        """The ids and targets of the step."""
        rows = self.order[self.asked.rows_before(self.step) : self.asked.rows_before(self.step + 1)]
        read = torch.from_numpy(self.windows[np.sort(rows)].astype(np.int64))
        ids, targets = read[:, :-1], read[:, 1:]
        if (num_lists := self.asked.recipe.batch - len(rows)) == 0:
            return ids, targets
        rng = np.random.default_rng([self.asked.seed, self.step])
        made = lists.make_lists(rng, num_lists, self.asked.seq_len, lists.PAIRS, lists.list_ids(self.asked.config.vocab_size))
        return torch.cat([ids, made[0]]), torch.cat([targets, made[1]])

    def _add_point(self, share: float) -> None:
        point = {
            "model": self.asked.name,
            "step": self.step,
            "tokens": self.tokens(self.step),
            "loss_nats": sum(self.losses) / len(self.losses),
            "learning_rate": share * self.asked.recipe.learning_rate,
        }
        found = lists.accuracies(self.trainer) if self.asked.recipe.lists else [None, None]
        point |= dict(zip(("lists_4", "lists_16"), found, strict=True))
        self.curve.append(point)
        if len(self.curve) % (POINTS // 5) == 0:
            events.note(f"{self.asked.name} after {point['tokens']:,} tokens: {point['loss_nats']:.3f} nats per token")
        self.losses = []

    def _checkpoint_steps(self) -> set[int]:
        every = self.asked.checkpoint_tokens
        if every is None:
            return {self.num_steps}
        return {*(step for step in range(1, self.num_steps) if self.tokens(step) // every > self.tokens(step - 1) // every), self.num_steps}

    def _write_checkpoint(self) -> None:
        """A model folder that every command reads."""
        if self.journal is None:
            return
        folder = self.out / f"checkpoint-{self.step}"
        folder.mkdir(exist_ok=True)
        write_tokenizer(folder, self.opened.tokenizer)
        with artifacts.replacing(folder / zoo.CONFIG) as temporary:
            temporary.write_text(zoo.config_json(self.asked.config), encoding="utf-8")
        _write_tensors(folder / zoo.WEIGHTS, self.trainer.model.state_dict())

    def _save(self) -> None:
        """Saves all that is needed to resume, after which the one before goes."""
        if self.journal is None or self.step == self.num_steps:
            return
        number = self.journal.num_parts
        _write_tensors(self.journal.part(number), self.trainer.state())
        self.journal.commit({"step": self.step, "saved": number, "curve": self.curve, "losses": self.losses})
        if number > 1:
            self.journal.part(number - 1).unlink(missing_ok=True)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with artifacts.replacing(path) as temporary:
        mode = temporary.stat().st_mode  # safetensors makes a file for its owner alone
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary)
        temporary.chmod(mode)
