"""A model trained on text: windows that are read once each, in an order of the seed; checkpoints; a
curve; resumed where it was saved."""

from __future__ import annotations

import contextlib
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from recallkit import events
from recallkit.declarations import amount
from recallkit.display.progress import progress
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.storage import artifacts, whole_files
from recallkit.text.records import Position
from recallkit.text.sequences import pack_sequences
from recallkit.text.tokenizers import TOKENIZER_FILE, write_tokenizer
from recallkit.training import lists
from recallkit.training.loop import Trainer, new_model, optimisers
from recallkit.training.processes import from_first, wait_for_all

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from torch import Tensor

    from recallkit.models.language_model import LanguageModel
    from recallkit.options import TextTrainingOptions
    from recallkit.storage.journal import Journal
    from recallkit.text.open_text import OpenText
    from recallkit.training.recipes import Trained

POINTS = 50
"""Of the curve, each the mean of the steps since the one before."""
SAVED_EVERY_SECONDS = 300
_CHECKPOINT = (TOKENIZER_FILE, zoo.CONFIG, zoo.WEIGHTS)
"""The files of a checkpoint."""


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
        whole_files.replacing(path) as temporary,
        temporary.open("wb") as file,
        progress("packing", total=opened.most_tokens) as show,
    ):
        for block in blocks:
            windows = len(block.ids) // (seq_len + 1)  # the last window may be shorter
            ids = block.ids[: windows * (seq_len + 1)]
            file.write(ids.astype(_dtype(opened)).tobytes())
            done += windows * seq_len
            show(done, opened.estimated_tokens(done))


def _read_windows(path: Path, seq_len: int, opened: OpenText) -> np.ndarray:
    if not path.stat().st_size:
        return np.empty((0, seq_len + 1), _dtype(opened))
    return np.memmap(path, _dtype(opened), "r").reshape(-1, seq_len + 1)


def _damaged(path: Path) -> UserError:
    return UserError("unfinished work is damaged", where=path, remedy="begin again with --force")


def _dtype(opened: OpenText) -> type:
    return np.uint16 if opened.tokenizer.vocab_size <= 1 << 16 else np.uint32


class TextRun:
    """A training in progress: its step, its curve. Only the first process has a `journal`, and
    writes."""

    def __init__(
        self,
        trained: Trained,
        options: TextTrainingOptions,
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
        self.trained, self.recipe, self.seq_len = trained, trained.recipe, trained.seq_len
        self.options, self.opened, self.out, self.journal = options, opened, out, journal
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
            micro_batch=options.micro_batch,
            is_compiled=options.compiled,
        )
        self.order = np.random.default_rng(options.seed).permutation(len(self.windows))
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
        available, wanted = len(self.windows) * self.seq_len, amount(self.options.tokens)
        if wanted is not None and available + self.seq_len <= wanted:
            problem, remedy = f"the text has {available:,}", f"or at most --tokens {available}"
            raise UserError(
                problem,
                where=f"--tokens {wanted:,}",
                remedy=f"give more text, {remedy}",
            )
        steps = len(self.windows) // self.recipe.batch
        while self.rows(steps + 1) <= len(self.windows):
            steps += 1
        if not steps:
            sequences = f"{len(self.windows):,} sequences of {self.seq_len:,}"
            problem = f"{sequences} are fewer than the {self.recipe.batch:,} of a step"
            remedy = "give more text, or a smaller --batch or --seq-len"
            raise UserError(problem, where="--tokens", remedy=remedy)
        return steps

    def _new_model(self, device: torch.device) -> LanguageModel:
        """MLPs begin at zero, so that blocks begin as their mixers."""
        name = self.trained.name
        model = new_model(self.options.seed, self.trained.config)
        if model.max_length is not None and model.max_length < self.seq_len:
            problem = f"it reads at most {model.max_length:,} ids"
            where = f"{name}, --seq-len {self.seq_len:,}"
            raise UserError(problem, where=where, remedy=f"give --seq-len {model.max_length}")
        if model.prefix:
            problem = f"it sees its first {model.prefix:,} ids before it predicts them"
            remedy = "train it on questions after them: --task mqar (docs/train.md)"
            raise UserError(problem, where=name, remedy=remedy)
        has_room = self.seq_len >= lists.LENGTH and model.config.vocab_size > lists.FIRST_IDS
        if self.recipe.lists and not has_room:
            problem = f"lists have {lists.LENGTH} ids, of {lists.FIRST_IDS + 1} at least"
            remedy = "give --no-lists, or longer sequences and a larger vocabulary"
            raise UserError(problem, where=name, remedy=remedy)
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
        self.step, self.curve, self.losses = state["step"], state["curve"], state["losses"]
        self.is_saved = True
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
            progress(f"training {self.trained.name}", total=self.tokens(self.num_steps)) as show,
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
        # Mixers that draw in training draw the same after a resumption.
        torch.manual_seed(self.options.seed + self.step)
        ids, targets, num_lists = self._batch()
        share = self.recipe.share(self.step, self.num_steps)
        loss, _ = self.trainer.gradients(ids, targets)
        with events.uncut():  # weights, step and curve change together
            self.trainer.update(share)
            self.step += 1
            if not math.isfinite(loss):
                problem = f"the loss is {loss} at step {self.step:,}"
                remedy = "choose lower --learning-rates, and --force"
                raise UserError(problem, where=self.trained.name, remedy=remedy)
            if not num_lists:  # the curve is of text alone
                self.losses.append(loss)
            if is_point and self.losses:
                self._add_point(share)

    def _learn_lists(self) -> None:
        with progress(
            f"teaching {self.trained.name} lists",
            total=lists.STEPS,
            unit="steps",
        ) as show:
            for step in lists.learn_lists(self.trainer, self.options.seed):
                show(step)
        pairs = zip(lists.TEST_PAIRS, lists.accuracies(self.trainer), strict=True)
        shares = ", ".join(f"{share:.1%} of {number} pairs" for number, share in pairs)
        events.note(f"{self.trained.name} answers {shares} in lists")
        # Text begins with new ones.
        self.trainer.optimisers = optimisers(self.trainer.model, self.recipe)

    def _batch(self) -> tuple[Tensor, Tensor, int]:
        """The ids and targets of the step, and how many of its rows are lists."""
        rows = self.order[self.rows(self.step) : self.rows(self.step + 1)]
        windows = torch.from_numpy(self.windows[np.sort(rows)].astype(np.int64))
        ids, targets, num_lists = windows[:, :-1], windows[:, 1:], self.recipe.batch - len(rows)
        if num_lists:
            rng = np.random.default_rng([self.options.seed, self.step])
            every_id = lists.list_ids(self.trained.config.vocab_size)
            further = lists.make_lists(rng, num_lists, self.seq_len, lists.PAIRS, every_id)
            ids, targets = torch.cat([ids, further[0]]), torch.cat([targets, further[1]])
        return ids, targets, num_lists

    def _add_point(self, share: float) -> None:
        shares = lists.accuracies(self.trainer) if self.recipe.lists else [None, None]
        name, tokens = self.trained.name, self.tokens(self.step)
        loss = sum(self.losses) / len(self.losses)
        point = {
            "model": name,
            "step": self.step,
            "tokens": tokens,
            "loss_nats": loss,
            "learning_rate": share * self.recipe.learning_rate,
            "lists_4": shares[0],
            "lists_16": shares[1],
        }
        self.curve.append(point)
        if len(self.curve) % (POINTS // 5) == 0:
            events.note(f"{name} after {tokens:,} tokens: {loss:.3f} nats per token")
        self.losses = []

    def _checkpoint_steps(self) -> set[int]:
        """Those that reach another multiple of `--checkpoint-every` tokens, and the last one."""
        every, steps = amount(self.options.checkpoint_every), {self.num_steps}
        if every is not None:
            for step in range(1, self.num_steps):
                if self.tokens(step) // every > self.tokens(step - 1) // every:
                    steps.add(step)
        return steps

    def _check_checkpoints(self, *, force: bool) -> None:
        """Raises UserError where a checkpoint is in the way: an unchanged one of ours is replaced
        with `force` alone, another never."""
        for step in sorted(self._checkpoint_steps()):
            folder = self.out / f"checkpoint-{step}"
            if folder.exists() and not force:
                remedy = "choose another -o, or move it away"
                raise UserError("a checkpoint is there already", where=folder, remedy=remedy)
            artifacts.check_addable(folder / artifacts.MANIFEST, _CHECKPOINT)

    def _write_checkpoint(self) -> None:
        """A model folder that every command reads."""
        if self.journal is None:
            return
        folder = self.out / f"checkpoint-{self.step}"
        with artifacts.adding_members(folder, _CHECKPOINT) as new:
            write_tokenizer(new, self.opened.tokenizer)
            (new / zoo.CONFIG).write_text(zoo.config_json(self.trained.config), encoding="utf-8")
            _write_tensors(new / zoo.WEIGHTS, self.trainer.model.state_dict())

    def _save(self) -> None:
        """Saves all that is needed to resume, after which the one before goes."""
        if self.journal is None or self.step == self.num_steps:
            return
        number = self.journal.num_parts
        with events.uncut():
            _write_tensors(self.journal.part(number), self.trainer.state())
            state = {"step": self.step, "curve": self.curve, "losses": self.losses}
            self.journal.commit({**state, "saved": number})
            if number > 1:
                self.journal.part(number - 1).unlink(missing_ok=True)


def _write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    from safetensors.torch import save_file

    with whole_files.replacing(path) as temporary:
        mode = temporary.stat().st_mode  # safetensors makes a file for its owner alone
        save_file({name: value.contiguous().cpu() for name, value in tensors.items()}, temporary)
        with contextlib.suppress(OSError):  # a file system without modes
            temporary.chmod(mode)
