"""A model trained on text: windows that are read once each, in an order of the seed; checkpoints; a
curve; resumed where it was saved."""

from __future__ import annotations

import contextlib
import json
import math
import time
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from recallkit import events
from recallkit.declarations import amount
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.devices import choose_device, describe_device, memory_errors
from recallkit.options import TextOptions
from recallkit.storage import artifacts, schemas
from recallkit.storage.result import Question
from recallkit.storage.timings import Timings
from recallkit.text.open_text import OpenText
from recallkit.text.records import Position
from recallkit.text.sequences import pack_sequences
from recallkit.text.tokenizers import TOKENIZER_FILE, write_tokenizer
from recallkit.training import lists, recipes
from recallkit.training.loop import (
    Trainer,
    from_first,
    is_first,
    join_processes,
    leave_processes,
    made_model,
    optimisers,
    wait_for_all,
)
from recallkit.training.tables import TrainingTables

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from recallkit.models.language_model import LanguageModel
    from recallkit.options import TextTrainingOptions
    from recallkit.storage.journal import Journal
    from recallkit.training.recipes import Trained

POINTS = 50
"""Of the curve, each the mean of the steps since the one before."""
SAVED_EVERY_SECONDS = 300
_CHECKPOINT = (TOKENIZER_FILE, zoo.CONFIG, zoo.WEIGHTS)
"""The files of a checkpoint."""


def train_text(
    model: str,
    text: TextOptions,
    asked: TextTrainingOptions,
    out: Path,
    *,
    device: str = "auto",
    force: bool = False,
) -> TrainingTables:
    """Trains the model of that name, or resumes; writes checkpoints `out`/checkpoint-STEP and the
    curve.

    Under torchrun every process calls it, and the first one writes. Raises UserError for what a
    user can correct.
    """
    found = recipes.find(model, asked)
    given = {each.name: getattr(text, each.name) for each in fields(TextOptions) if each.init}
    opened = OpenText(TextOptions(**{**given, "boundary": "pack", "limit_tokens": asked.tokens}))
    found = found._replace(config=replace(found.config, vocab_size=opened.tokenizer.vocab_size))
    chosen = join_processes(choose_device(device))
    options = {
        "model": found.name,
        "config": json.loads(json.dumps(found.config.identity())),
        "recipe": {**asdict(found.recipe), "betas": list(found.recipe.betas)},
        "seed": asked.seed,
        "seq_len": found.seq_len,
        "text": opened.identity(),
    }
    question = Question("training", TrainingTables, out, options, force)
    result = question.result
    finished, every = result.finished(), amount(asked.checkpoint_every)
    if finished and every not in (None, finished["asked"].get("checkpoint_every")):
        problem, remedy = (
            "the run is finished, and was not asked for these",
            "leave it out, or train again with --force",
        )
        raise UserError(problem, where=f"--checkpoint-every {every:,}", remedy=remedy)
    if result.reused() is None:
        timings = Timings()
        with result.journal() if is_first() else contextlib.nullcontext() as journal:
            run = _Run(
                found,
                asked,
                opened,
                out,
                chosen,
                result.journal().part,
                journal,
                force=force,
            )
            with timings.stage("training", resumed=run.step > 0) as stage, memory_errors():
                stage.amounts["tokens"] = run.train()
            if journal is not None:
                facts = {
                    "asked": {
                        "model": model,
                        "tokenizer": text.tokenizer and str(text.tokenizer),
                        "checkpoint_every": every,
                    },
                    "names": opened.facts()["names"],
                    "parameters": run.trainer.model.num_parameters(),
                    "num_steps": run.num_steps,
                    "tokens": run.tokens(run.num_steps),
                    "machine": describe_device(chosen),
                }
                question.write(
                    TrainingTables(schemas.frame_of("training/training", run.curve)),
                    facts,
                    timings,
                )
                journal.finish()
    leave_processes()
    return TrainingTables(schemas.read_frame(result.path))


def _write_windows(opened: OpenText, seq_len: int, path: Path) -> None:
    """Writes the packed text, (n, seq_len + 1) ids in the order of the text; windows share the id
    at which one ends and the next begins."""
    blocks = pack_sequences(
        opened.encoded(Position()),
        end_token_id=opened.tokenizer.end_token_id,
        seq_len=seq_len,
        boundary="pack",
        limit_predictions=opened.options.most_tokens,
    )
    done = 0
    with (
        artifacts.replacing(path) as temporary,
        temporary.open("wb") as file,
        progress("packing", total=opened.most_tokens) as show,
    ):
        for block in blocks:
            whole = len(block.ids) - len(block.ids) % (seq_len + 1)  # the last window may be shorter
            file.write(block.ids[:whole].astype(_dtype(opened)).tobytes())
            done += whole // (seq_len + 1) * seq_len
            show(done, opened.estimated_tokens(done))


def _read_windows(path: Path, seq_len: int, opened: OpenText) -> np.ndarray:
    if not path.stat().st_size:
        return np.empty((0, seq_len + 1), _dtype(opened))
    return np.memmap(path, _dtype(opened), "r").reshape(-1, seq_len + 1)


def _damaged(path: Path) -> UserError:
    return UserError("unfinished work is damaged", where=path, remedy="begin again with --force")


def _dtype(opened: OpenText) -> type:
    return np.uint16 if opened.tokenizer.vocab_size <= 1 << 16 else np.uint32


class _Run:
    """A training in progress: its step, its curve. Only the first process has a `journal`, and
    writes."""

    def __init__(
        self,
        found: Trained,
        asked: TextTrainingOptions,
        opened: OpenText,
        out: Path,
        device: torch.device,
        part: Callable[[int], Path],
        journal: Journal | None,
        *,
        force: bool,
    ) -> None:
        """Packs the text and makes the model, or restores what an interrupted run has saved. Raises
        UserError."""
        self.found, self.asked, self.opened, self.out, self.journal = (
            found,
            asked,
            opened,
            out,
            journal,
        )
        self.recipe, self.seq_len = found.recipe, found.seq_len
        if journal is not None and not journal.resumed:
            _write_windows(opened, self.seq_len, part(0))
        wait_for_all()
        try:
            self.windows = _read_windows(part(0), self.seq_len, opened)
        except (OSError, ValueError) as error:
            raise _damaged(part(0)) from error
        self.num_steps = self._num_steps()
        self.trainer = Trainer(
            self._new_model(device),
            self.recipe,
            micro_batch=asked.micro_batch,
            is_compiled=asked.compiled,
        )
        self.order = np.random.default_rng(asked.seed).permutation(len(self.windows))
        self.step, self.is_saved = 0, False
        self.curve: list[dict[str, Any]] = []
        self.losses: list[float] = []
        if journal is not None and not journal.resumed:
            self._check_checkpoints(force=force)
            journal.commit({"step": 0})
        self._take_up(part)

    def rows(self, step: int) -> int:
        """Windows of text that the steps before this one read."""
        return step * self.recipe.batch - (step // lists.EVERY if self.recipe.lists else 0)

    def tokens(self, step: int) -> int:
        """Predictions of text before a step."""
        return self.rows(step) * self.seq_len

    def _num_steps(self) -> int:
        """As many steps as the windows allow. Raises UserError where they allow none, or where
        there is less text than was asked for."""
        there, wanted = len(self.windows) * self.seq_len, amount(self.asked.tokens)
        if wanted is not None and there + self.seq_len <= wanted:
            remedy = f"give more text, or at most --tokens {there}"
            raise UserError(f"the text has {there:,}", where=f"--tokens {wanted:,}", remedy=remedy)
        steps = len(self.windows) // self.recipe.batch
        while self.rows(steps + 1) <= len(self.windows):
            steps += 1
        if not steps:
            problem = f"{len(self.windows):,} sequences of {self.seq_len:,} are fewer than the {self.recipe.batch:,} of a step"
            raise UserError(
                problem,
                where="--tokens",
                remedy="give more text, or a smaller --batch or --seq-len",
            )
        return steps

    def _new_model(self, device: torch.device) -> LanguageModel:
        """MLPs begin at zero, so that blocks begin as their mixers."""
        model = made_model(self.asked.seed, self.found.config)
        if model.max_length is not None and model.max_length < self.seq_len:
            problem, remedy = (
                f"it reads at most {model.max_length:,} ids",
                f"give --seq-len {model.max_length}",
            )
            raise UserError(
                problem,
                where=f"{self.found.name}, --seq-len {self.seq_len:,}",
                remedy=remedy,
            )
        if model.prefix:
            problem = f"it sees its first {model.prefix:,} ids before it predicts them"
            raise UserError(
                problem,
                where=self.found.name,
                remedy="train it on questions after them: --task mqar (docs/train.md)",
            )
        if self.recipe.lists and (self.seq_len < lists.LENGTH or model.config.vocab_size <= lists.FIRST_IDS):
            remedy = "give --no-lists, or longer sequences and a larger vocabulary"
            raise UserError(
                f"lists have {lists.LENGTH} ids, of {lists.FIRST_IDS + 1} at least",
                where=self.found.name,
                remedy=remedy,
            )
        for block in model.blocks:
            if (down := getattr(block.mlp, "down", None)) is not None:
                nn.init.zeros_(down.weight)
        return model.to(device)

    def _take_up(self, part: Callable[[int], Path]) -> None:
        """Restores what an interrupted run has saved. Raises UserError where that is damaged."""
        state = from_first(self.journal.state if self.journal is not None else None)
        if "saved" not in state:
            return
        from safetensors.torch import load_file

        path = part(state["saved"])
        try:
            self.trainer.restore(load_file(path))
        except Exception as error:
            raise _damaged(path) from error
        self.step, self.curve, self.losses, self.is_saved = (
            state["step"],
            state["curve"],
            state["losses"],
            True,
        )
        if self.journal is not None:
            self.journal.note_resumed(self.step, "steps")

    def train(self) -> int:
        """Trains to the end; returns the tokens of this process's steps."""
        first, saved = self.step, time.monotonic()
        if not self.is_saved and self.recipe.lists:
            self._learn_lists()
            self._save()
        points = {max(1, round(self.num_steps * point / POINTS)) for point in range(1, POINTS + 1)}
        checkpoints = self._checkpoint_steps()
        with (
            progress(f"training {self.found.name}", total=self.tokens(self.num_steps)) as show,
            self._saved_if_interrupted(),
        ):
            show(self.tokens(self.step))
            while self.step < self.num_steps:
                self._make_step(is_point=self.step + 1 in points)
                if self.step in checkpoints:
                    self._write_checkpoint()
                if self.step in checkpoints or time.monotonic() - saved > SAVED_EVERY_SECONDS:
                    self._save()
                    saved = time.monotonic()
                show(self.tokens(self.step))
        return self.tokens(self.num_steps) - self.tokens(first)

    @contextlib.contextmanager
    def _saved_if_interrupted(self) -> Iterator[None]:
        try:
            yield
        except KeyboardInterrupt:
            if self.step:
                self._save()
            raise

    def _make_step(self, *, is_point: bool) -> None:
        torch.manual_seed(
            self.asked.seed + self.step,
        )  # mixers that draw in training draw the same after a resumption
        ids, targets, num_lists = self._batch()
        share = self.recipe.share(self.step, self.num_steps)
        loss, _ = self.trainer.gradients(ids, targets)
        with events.held():  # weights, step and curve change together
            self.trainer.update(share)
            self.step += 1
            if not math.isfinite(loss):
                remedy = "choose lower --learning-rates, and --force"
                raise UserError(
                    f"the loss is {loss} at step {self.step:,}",
                    where=self.found.name,
                    remedy=remedy,
                )
            if not num_lists:  # the curve is of text alone
                self.losses.append(loss)
            if is_point and self.losses:
                self._add_point(share)

    def _learn_lists(self) -> None:
        with progress(f"teaching {self.found.name} lists", total=lists.STEPS, unit="steps") as show:
            for step in lists.learn_lists(self.trainer, self.asked.seed):
                show(step)
        accuracy = zip(lists.TEST_PAIRS, lists.accuracies(self.trainer), strict=True)
        shown = ", ".join(f"{share:.1%} of {pairs} pairs" for pairs, share in accuracy)
        events.note(f"{self.found.name} answers {shown} in lists")
        self.trainer.optimisers = optimisers(
            self.trainer.model,
            self.recipe,
        )  # text begins with new ones

    def _batch(self) -> tuple[Tensor, Tensor, int]:
        """The ids and targets of the step, and how many of its rows are lists."""
        rows = self.order[self.rows(self.step) : self.rows(self.step + 1)]
        read = torch.from_numpy(self.windows[np.sort(rows)].astype(np.int64))
        ids, targets, num_lists = read[:, :-1], read[:, 1:], self.recipe.batch - len(rows)
        if num_lists:
            rng = np.random.default_rng([self.asked.seed, self.step])
            made = lists.make_lists(
                rng,
                num_lists,
                self.seq_len,
                lists.PAIRS,
                lists.list_ids(self.found.config.vocab_size),
            )
            ids, targets = torch.cat([ids, made[0]]), torch.cat([targets, made[1]])
        return ids, targets, num_lists

    def _add_point(self, share: float) -> None:
        found = lists.accuracies(self.trainer) if self.recipe.lists else [None, None]
        point = {
            "model": self.found.name,
            "step": self.step,
            "tokens": self.tokens(self.step),
            "loss_nats": sum(self.losses) / len(self.losses),
            "learning_rate": share * self.recipe.learning_rate,
            **dict(zip(("lists_4", "lists_16"), found, strict=True)),
        }
        self.curve.append(point)
        if len(self.curve) % (POINTS // 5) == 0:
            events.note(
                f"{self.found.name} after {point['tokens']:,} tokens: {point['loss_nats']:.3f} nats per token",
            )
        self.losses = []

    def _checkpoint_steps(self) -> set[int]:
        every = amount(self.asked.checkpoint_every)
        if every is None:
            return {self.num_steps}
        return {
            *(step for step in range(1, self.num_steps) if self.tokens(step) // every > self.tokens(step - 1) // every),
            self.num_steps,
        }

    def _check_checkpoints(self, *, force: bool) -> None:
        """Raises UserError where a checkpoint is in the way: an unchanged one of ours is replaced
        with `force` alone, another never."""
        for step in sorted(self._checkpoint_steps()):
            folder = self.out / f"checkpoint-{step}"
            if folder.exists() and not force:
                raise UserError(
                    "a checkpoint is there already",
                    where=folder,
                    remedy="choose another -o, or move it away",
                )
            artifacts.check_addable(folder / artifacts.MANIFEST, _CHECKPOINT)

    def _write_checkpoint(self) -> None:
        """A model folder that every command reads."""
        if self.journal is None:
            return
        folder = self.out / f"checkpoint-{self.step}"
        with artifacts.adding_members(folder, _CHECKPOINT) as new:
            write_tokenizer(new, self.opened.tokenizer)
            (new / zoo.CONFIG).write_text(zoo.config_json(self.found.config), encoding="utf-8")
            _write_tensors(new / zoo.WEIGHTS, self.trainer.model.state_dict())

    def _save(self) -> None:
        """Saves all that is needed to resume, after which the one before goes."""
        if self.journal is None or self.step == self.num_steps:
            return
        number = self.journal.num_parts
        with events.held():
            _write_tensors(self.journal.part(number), self.trainer.state())
            self.journal.commit(
                {"step": self.step, "saved": number, "curve": self.curve, "losses": self.losses},
            )
            if number > 1:
                self.journal.part(number - 1).unlink(missing_ok=True)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with artifacts.replacing(path) as temporary:
        mode = temporary.stat().st_mode  # safetensors makes a file for its owner alone
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary)
        with contextlib.suppress(OSError):  # a file system without modes
            temporary.chmod(mode)
