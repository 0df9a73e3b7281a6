"""Greedy generation, and the NLL of a known answer after the same prompt, for every scoring model.

A `TorchModel` reads each prompt once and continues token by token, all rows together (`by_stepping`); any other model scores the
whole sequence again for every generated id (`by_scoring`). Padding never enters a model's state.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit.models.devices import memory_errors
from recallkit.models.protocol import Continuation
from recallkit.ragged import offsets_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from recallkit.models.protocol import ScoringModel

    IsDone = Callable[[int, list[int]], bool]


def generate(
    model: ScoringModel, prompts: Sequence[np.ndarray], answers: Sequence[np.ndarray], most: int, is_done: IsDone
) -> list[Continuation]:
    """Continues each prompt by the ids of the largest logits, the lowest among equals, and scores its answer after it.

    `prompts[i]`: ids (t,), at least one. `answers[i]`: ids whose NLL is wanted, may be none. `most`: most ids generated, 0
    for none. `is_done(i, ids)` is called after each id generated for prompt i, and says whether its text is complete. All prompts are
    one batch; len(prompt) + max(most, len(answer)) must be within `max_length`. Raises MemoryError where they do not fit.
    """
    own = getattr(model, "generate", None)
    return by_scoring(model, prompts, answers, most, is_done) if own is None else list(own(prompts, answers, most, is_done))


def by_scoring(
    model: ScoringModel, prompts: Sequence[np.ndarray], answers: Sequence[np.ndarray], most: int, is_done: IsDone
) -> list[Continuation]:
    """See `generate`: each id is the last argmax of the prompt, what was generated, and an arbitrary id whose score is not used."""
    found = [Continuation([], np.empty(0, np.float32)) for _ in prompts]
    asked = [answer if len(answer) else [0] for answer in answers]
    going = [number for number, answer in enumerate(answers) if most or len(answer)]
    first = {}
    for number, (nll, argmax) in zip(going, _scored(model, [np.append(prompts[i], asked[i]) for i in going]), strict=True):
        found[number] = Continuation([], nll[len(nll) - len(answers[number]) :])
        first[number] = int(argmax[len(prompts[number]) - 1])
    going = going if most else []
    following = [first[number] for number in going]
    while going:
        for number, following_id in zip(going, following, strict=True):
            found[number].ids.append(following_id)
        going = [i for i in going if not is_done(i, found[i].ids) and len(found[i].ids) < most]
        texts = [np.concatenate([prompts[i], found[i].ids, [0]]) for i in going]
        following = [int(argmax[-1]) for _, argmax in _scored(model, texts)]
    return found


def _scored(model: ScoringModel, sequences: Sequence[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    """NLLs and argmaxes of each sequence."""
    if not sequences:
        return []
    offsets = offsets_of([len(sequence) for sequence in sequences])
    scores = model.score(np.concatenate(sequences).astype(np.uint32), offsets)
    ends = (offsets - np.arange(len(offsets)))[1:-1]
    return list(zip(np.split(scores.nll, ends), np.split(scores.argmax, ends), strict=True))


@dataclass(slots=True)
class _Row:
    """A prompt that is continued: by the ids of its answer, or (None) by the ids that the model generates."""

    number: int
    inputs: np.ndarray
    """Ids that are read before the first step, int64."""
    answer: np.ndarray | None = None
    ids: list[int] = field(default_factory=list)
    """What follows the prompt so far."""
    noted: list[int] = field(default_factory=list)
    """Indices of its NLLs among those of all rows."""

    @property
    def due(self) -> int:
        """The next id of its answer; the row must have one."""
        assert self.answer is not None
        return int(self.answer[len(self.ids)])


def by_stepping(model: Any, prompts: Sequence[np.ndarray], answers: Sequence[np.ndarray], most: int, is_done: IsDone) -> list[Continuation]:
    """See `generate`: each prompt is read once, then rows are continued together as far as `model.joining` allows."""
    import torch

    found = [Continuation([], np.empty(0, np.float32)) for _ in prompts]
    inputs = [np.asarray(prompt, np.int64) for prompt in prompts]
    rows = [_Row(i, ids, ids=found[i].ids) for i, ids in enumerate(inputs) if most]
    rows += [_Row(i, ids, np.asarray(answers[i], np.int64)) for i, ids in enumerate(inputs) if len(answers[i])]
    loop = _Loop(model, most, is_done)
    with torch.inference_mode(), memory_errors():
        for batch in loop.batches(loop.begin_with_two(rows)):
            loop.run(*batch)
        nll = torch.cat(loop.nll).cpu().numpy() if loop.nll else np.empty(0, np.float32)
    for row in rows:
        if row.answer is not None:
            found[row.number] = Continuation(found[row.number].ids, nll[row.noted].astype(np.float32))
    return found


class _Loop:
    """Continues rows step by step."""

    def __init__(self, model: Any, most: int, is_done: IsDone) -> None:
        self.model, self.most, self.is_done = model, most, is_done
        self.nll: list[Tensor] = []
        """NLLs of each step's rows that have an answer, kept on the device until the end."""
        self.num_noted = 0

    def begin_with_two(self, rows: list[_Row]) -> list[_Row]:
        """The unfinished rows, each with at least two ids to read first: some models take a single id for a step from an earlier state."""
        single = [row for row in rows if len(row.inputs) == 1]
        if not single:
            return rows
        outputs = self.model.forward(self.model.to_device(np.stack([row.inputs for row in single])))[0]
        going = [single[place] for place in self._advance(single, outputs[:, -1])]
        for row in going:
            row.inputs = np.append(row.inputs, row.ids)
        return [row for row in rows if len(row.inputs) > 1]

    def batches(self, rows: list[_Row]) -> Iterator[tuple[list[_Row], Tensor, Any]]:
        """Groups of rows that step together, with outputs (rows, ...) after their inputs, and their state."""
        rows = sorted(rows, key=lambda row: (-len(row.inputs), row.inputs.tobytes()))
        read = (self._read(list(alike)) for _, alike in itertools.groupby(rows, self._read_as))
        if self.model.joining == "any" and rows:
            yield self._joined(list(read))
        elif self.model.joining == "none":
            for together, outputs, state in read:
                yield from (([row], outputs[i : i + 1], self.model.take(state, [i])) for i, row in enumerate(together))
        else:
            yield from read

    def _read_as(self, row: _Row) -> Any:
        """The key by which rows are grouped to be read together."""
        return row.inputs.tobytes() if self.model.sharing == "none" else len(row.inputs)

    def _read(self, rows: list[_Row]) -> tuple[list[_Row], Tensor, Any]:
        """Rows of equal length as one of `batches`; a text that two rows share is read once."""
        texts = list({row.inputs.tobytes(): row.inputs for row in rows}.values())
        inputs, state = np.stack(texts), None
        ends = np.cumsum(self.model.pieces(inputs.shape[1], self.model.prompt_chunk))
        for piece in np.split(inputs, ends[:-1], axis=1):
            outputs, state = self.model.forward(self.model.to_device(piece), state, carry=True)
        if len(texts) == len(rows):
            return rows, outputs[:, -1], state
        places = np.cumsum([0] + [not np.array_equal(a.inputs, b.inputs) for a, b in itertools.pairwise(rows)]).tolist()
        return rows, outputs[places, -1], self.model.take(state, places)

    def _joined(self, batches: list[tuple[list[_Row], Tensor, Any]]) -> tuple[list[_Row], Tensor, Any]:
        import torch

        rows, outputs, states = zip(*batches, strict=True)
        state = states[0] if len(states) == 1 else self.model.join(states)
        return list(itertools.chain(*rows)), torch.cat(outputs), state

    def run(self, rows: list[_Row], outputs: Tensor, state: Any) -> None:
        """Steps on from one of `batches` until all of its rows are done; finished rows leave the batch."""
        while going := self._advance(rows, outputs):
            if len(going) < len(rows):
                rows, state = [rows[place] for place in going], self.model.take(state, going)
            ids = self.model.to_device(np.array([[row.ids[-1]] for row in rows]))
            outputs, state = self.model.forward(ids, state, carry=True)
            outputs = outputs[:, -1]

    def _advance(self, rows: list[_Row], outputs: Tensor) -> list[int]:
        """Gives every row its next id, from outputs (rows, ...); the indices of those that are not done."""
        free = [place for place, row in enumerate(rows) if row.answer is None]
        known = [place for place, row in enumerate(rows) if row.answer is not None]
        picked = iter(self.model.pick(outputs[free]).tolist() if free else ())
        if known:
            targets = np.array([rows[place].due for place in known])
            self.nll.append(self.model.reduce(outputs[known], self.model.to_device(targets)).nll)
        going = []
        for place, row in enumerate(rows):
            if row.answer is None:
                row.ids.append(next(picked))
                done = self.is_done(row.number, row.ids) or len(row.ids) == self.most
            else:
                row.ids.append(row.due)
                row.noted.append(self.num_noted)
                self.num_noted += 1
                done = len(row.ids) == len(row.answer)
            going += [] if done else [place]
        return going
