"""Greedy generation, and the NLL of a known answer after the same prompt, for every scoring model.

A `TorchModel` reads each prompt once and continues token by token, all rows together
(`by_stepping`); any other model scores the whole sequence again for every generated id
(`by_scoring`). Padding never enters a model's state.
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
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from recallkit.models.protocol import ScoringModel

    IsDone = Callable[[int, list[int]], bool]


def generate(
    model: ScoringModel,
    prompts: Sequence[np.ndarray],
    answers: Sequence[np.ndarray],
    most: int,
    is_done: IsDone,
) -> list[Continuation]:
    """Continues each prompt by the ids of the largest logits, the lowest among equals, and scores
    its answer after it.

    `prompts[i]`: ids (t,), at least one. `answers[i]`: ids whose NLL is wanted, may be none.
    `most`: most ids generated, 0 for none. `is_done(i, ids)` is called after each id generated for
    prompt i, and says whether its text is complete. All prompts are one batch; len(prompt) +
    max(most, len(answer)) must be within `max_length`. Raises MemoryError where they do not fit.
    """
    own = getattr(model, "generate", None)
    if own is None:
        return by_scoring(model, prompts, answers, most, is_done)
    return list(own(prompts, answers, most, is_done))


def by_scoring(
    model: ScoringModel,
    prompts: Sequence[np.ndarray],
    answers: Sequence[np.ndarray],
    most: int,
    is_done: IsDone,
) -> list[Continuation]:
    """See `generate`: each id is the last argmax of the prompt, what was generated, and an
    arbitrary id whose score is not used."""
    continuations = [Continuation([], np.empty(0, np.float32)) for _ in prompts]
    targets = [answer if len(answer) else [0] for answer in answers]
    going = [number for number, answer in enumerate(answers) if most or len(answer)]
    first = {}
    for number, (nll, argmax) in zip(
        going,
        _scored(model, [np.append(prompts[i], targets[i]) for i in going]),
        strict=True,
    ):
        continuations[number] = Continuation([], nll[len(nll) - len(answers[number]) :])
        first[number] = int(argmax[len(prompts[number]) - 1])
    going = going if most else []
    following = [first[number] for number in going]
    while going:
        for number, following_id in zip(going, following, strict=True):
            continuations[number].ids.append(following_id)
        going = [i for i in going if not is_done(i, continuations[i].ids)]
        going = [i for i in going if len(continuations[i].ids) < most]
        texts = [np.concatenate([prompts[i], continuations[i].ids, [0]]) for i in going]
        following = [int(argmax[-1]) for _, argmax in _scored(model, texts)]
    return continuations


def _scored(
    model: ScoringModel,
    sequences: Sequence[np.ndarray],
) -> list[tuple[np.ndarray, np.ndarray]]:
    """NLLs and argmaxes of each sequence."""
    if not sequences:
        return []
    offsets = offsets_of([len(sequence) for sequence in sequences])
    scores = model.score(np.concatenate(sequences).astype(np.uint32), offsets)
    ends = (offsets - np.arange(len(offsets)))[1:-1]
    return list(zip(np.split(scores.nll, ends), np.split(scores.argmax, ends), strict=True))


@dataclass(slots=True)
class _Row:
    """A prompt that is continued: by the ids of its answer, or (None) by the ids that the model
    generates."""

    number: int
    inputs: np.ndarray
    """Ids that are read before the first step, int64."""
    answer: list[int] | None = None
    ids: list[int] = field(default_factory=list)
    """What follows the prompt so far."""
    nll: list[float] = field(default_factory=list)
    """Of these ids."""


def by_stepping(
    model: Any,
    prompts: Sequence[np.ndarray],
    answers: Sequence[np.ndarray],
    most: int,
    is_done: IsDone,
) -> list[Continuation]:
    """See `generate`: each prompt, of two ids at least, is read once, then all rows continue
    together, see `TorchModel.can_join`."""
    import torch

    def advance(rows: list[_Row], outputs: Tensor) -> list[int]:
        """Gives every row its next id, from outputs (rows, ...); the indices of those that are not
        done."""
        targets = [0 if row.answer is None else row.answer[len(row.ids)] for row in rows]
        scores = model.reduce(outputs, model.to_device(np.array(targets)))
        for row, target, argmax, nll in zip(
            rows,
            targets,
            scores.argmax.tolist(),
            scores.nll.tolist(),
            strict=True,
        ):
            row.ids.append(argmax if row.answer is None else target)
            row.nll.append(nll)
        return [place for place, row in enumerate(rows) if not is_complete(row)]

    def is_complete(row: _Row) -> bool:
        if row.answer is not None:
            return len(row.ids) == len(row.answer)
        return is_done(row.number, row.ids) or len(row.ids) == most

    inputs = [np.asarray(prompt, np.int64) for prompt in prompts]
    generated = [_Row(i, ids) for i, ids in enumerate(inputs) if most]
    answered = {}
    for i, ids in enumerate(inputs):
        if len(answers[i]):
            answered[i] = _Row(i, ids, np.asarray(answers[i]).tolist())
    with torch.no_grad(), memory_errors(), model.reading():
        rows, outputs, state = _read_all(model, [*generated, *answered.values()])
        while going := advance(rows, outputs):
            if len(going) < len(rows):  # finished rows leave the batch
                rows, state = [rows[place] for place in going], model.take(state, going)
            ids = model.to_device(np.array([[row.ids[-1]] for row in rows]))
            outputs, state = model.step(ids, state)
            outputs = outputs[:, -1]
    ids_of = {row.number: row.ids for row in generated}
    return [
        Continuation(
            ids_of.get(i, []),
            np.array(answered[i].nll if i in answered else [], np.float32),
        )
        for i in range(len(prompts))
    ]


def _read_all(model: Any, rows: list[_Row]) -> tuple[list[_Row], Tensor, Any]:
    """The rows, the longest first, with outputs (rows, ...) after their inputs and their joint
    state; equal lengths are read at once."""
    import torch

    rows = sorted(rows, key=lambda row: (-len(row.inputs), row.inputs.tobytes()))
    by_length = itertools.groupby(rows, lambda row: len(row.inputs))
    read = [_read(model, list(alike)) for _, alike in by_length]
    outputs, states = zip(*read, strict=True)
    return rows, torch.cat(outputs), states[0] if len(states) == 1 else model.join(states)


def _read(model: Any, rows: list[_Row]) -> tuple[Tensor, Any]:
    """Outputs (rows, ...) after inputs of equal length, and their state; a text that two rows share
    is read once."""
    different = {row.inputs.tobytes(): row.inputs for row in rows}
    texts = list(different.values())
    inputs, state = np.stack(texts), None
    ends = np.cumsum(model.sizes(inputs.shape[1], model.prompt_chunk))
    for piece in np.split(inputs, ends[:-1], axis=1):
        outputs, state = model.advance(model.to_device(piece), state)
    if len(texts) == len(rows):
        return outputs[:, -1], state
    place_of = {text: place for place, text in enumerate(different)}
    places = [place_of[row.inputs.tobytes()] for row in rows]
    return outputs[places, -1], model.take(state, places)
