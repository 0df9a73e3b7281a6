"""Properties of a causal language model that are measured on a few ids rather than inferred from its name.

Families differ in what they do to their logits, in whether a longer batch changes a shorter sequence, and in how their
state can be carried; the answers here are those of the very model that was loaded.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from recallkit.models.protocol import Sharing

PROBED_IDS = 12
"""Few, so that probing a large model is quick; enough to reach beyond its short convolutions."""

EXACT = 1e-4
"""Differences of logits below this fraction of the largest one count as rounding error, in float32 or wider."""

_CARRIED = 1e-5
"""The same for logits after a carried state: the part that some models ignore can be small in a few ids (zamba)."""

_RULED_OUT = 1e30

_LEAK = 1e-3
"""Where a token's score changes by more than this fraction with what follows it, the model is not causal."""


@dataclass(frozen=True, slots=True)
class Head:
    """How logits follow from hidden states: z = `after` * (W (`before` * hidden) + bias), then `cap` * tanh(z / `cap`)."""

    before: float
    after: float
    cap: float | None = None


def random_ids(vocab_size: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """The same ids on every run, (b, t) int64."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, shape, generator=generator).to(device)


def is_close(outputs: Tensor, wanted: Tensor, tolerance: float = EXACT) -> bool:
    """Whether outputs differ by no more than `tolerance` times the largest wanted value.

    Entries that a model masks (-inf, or the lowest number of its dtype) must be the same, and do not count as the largest value.
    """
    ordinary = wanted.abs() < _RULED_OUT
    if outputs.shape != wanted.shape or not torch.equal(outputs.abs() < _RULED_OUT, ordinary):
        return False
    outputs, wanted = outputs[ordinary], wanted[ordinary]
    return not wanted.numel() or bool((outputs - wanted).abs().max() <= tolerance * wanted.abs().max())


def find_head(model: Any, run: Callable[..., Any], ids: Tensor) -> Head | None:
    """How logits follow from the backbone's last hidden states; None where `Head` cannot express it.

    `run(module, ids)` returns a module's output. A forward pass in which known values replace the linear layer's output
    shows what is done to it, however small the model's own logits are.
    """
    linear = model.get_output_embeddings()
    states = getattr(run(model.base_model, ids), "last_hidden_state", None)
    if not isinstance(linear, torch.nn.Linear) or not isinstance(states, torch.Tensor):
        return None
    seen: list[tuple[Tensor, Tensor]] = []

    def see(_: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        seen.append((inputs[0], _marks(output)))
        return seen[-1][1]

    hook = linear.register_forward_hook(see)
    try:
        logits = getattr(run(model, ids), "logits", None)
    finally:
        hook.remove()
    if len(seen) != 1 or not isinstance(logits, torch.Tensor) or logits.shape != seen[0][1].shape:
        return None
    before, curve = _factor(states, seen[0][0]), _curve(seen[0][1], logits)
    return None if before is None or curve is None else Head(before, *curve)


def _marks(like: Tensor) -> Tensor:
    """Powers of two of either sign, from 2^-12 to 2^12, in the shape of logits."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return torch.where(places % 2 == 0, 1.0, -1.0).to(like) * torch.exp2((places % 25 - 12).to(like))


def _curve(marks: Tensor, made: Tensor) -> tuple[float, float | None] | None:
    """The factor and the soft cap that were applied to the known values: the smallest show the factor, the largest the cap."""
    x, y = marks.double().flatten(), made.double().flatten()
    smallest, cap = x.abs().argmin(), float(y.abs().max())
    factor = float(y[smallest] / x[smallest])
    if _agree(factor * x, y):
        return factor, None
    factor = float(cap * torch.atanh(y[smallest] / cap) / x[smallest])
    return (factor, cap) if _agree(cap * torch.tanh(factor * x / cap), y) else None


def _agree(one: Tensor, other: Tensor) -> bool:
    return bool((((one - other).abs() <= 1e-5 * other.abs()) & other.isfinite()).all())


def _factor(given: Tensor, made: Tensor) -> float | None:
    """The factor by which `given` was multiplied to give `made`; None where it was not multiplied by one factor."""
    if made.shape != given.shape:
        return None
    x, y = given.double(), made.double()
    factor = float((x * y).sum() / (x * x).sum())
    if abs(factor - 1) <= 1e-6:
        factor = 1.0
    return factor if is_close(factor * x, y, 1e-5) else None


def find_sharing(logits: Callable[[Tensor], Tensor], ids: Tensor, name: str) -> Sharing:
    """Which sequences may share a batch, tried with `logits` (b, t, vocab) on ids like the two rows of `ids` (2, t).

    Raises UserError where a model is not causal: what follows a token changes its score.
    """
    seen = ids.shape[1] * 2 // 3
    other_end = torch.cat([ids[:1, :seen], ids[1:, seen:]], dim=1)
    together = logits(torch.cat([ids[:1], other_end]))[:, :seen]
    if not is_close(together[1], together[0], _LEAK):
        problem = "it is not causal: the ids that follow a token change what is predicted before them"
        raise UserError(problem, where=name, remedy="its scores would mean nothing; give a causal language model")
    if is_close(together[:1], logits(ids[:1, :seen])):
        return "any"
    return "equal" if is_close(together[:1], logits(ids[:1])[:, :seen]) else "none"


@dataclass(frozen=True, slots=True)
class Carrying:
    """How a model's state is carried: into `chunks` of any length, or only in `steps` of one id once there is a state.

    `positions`: whether the model must be given the positions of the ids that follow.
    """

    pieces: Literal["chunks", "steps"]
    positions: bool


def find_carrying(whole: Tensor, read: Callable[[list[int], bool], Tensor]) -> Carrying | None:
    """The fastest way of carrying the state that reproduces the logits `whole` (b, t, vocab) of one pass; None if none does.

    `read(sizes, positions)` returns the logits of the same ids read in chunks of these sizes, or raises UserError. Some
    models ignore parts of their state where more than one id follows, so the logits of later chunks are compared; some
    mix up the rows of a batch where a single id follows, so several rows are read.
    """
    length = whole.shape[1]
    sizes: dict[Literal["chunks", "steps"], list[int]] = {"chunks": [2, 3, 2, length - 7], "steps": [2] + [1] * (length - 2)}
    for pieces, lengths in sizes.items():
        for positions in (True, False):
            with contextlib.suppress(UserError):
                if is_close(read(lengths, positions), whole, _CARRIED):
                    return Carrying(pieces, positions)
    return None


_STARTS: dict[Sharing, list[tuple[slice, int]]] = {"any": [(slice(1, 2), 5), (slice(0, 1), 3)], "equal": [(slice(0, 2), 3)]}
"""Sequences that are read together, and how many ids of each."""

_TAKEN = ([0, 1], [0, 1], [1, 0, 1], [1, 2], [1])
"""For each step, which of the previous rows take it."""


def find_joining(
    ids: Tensor,
    whole: Tensor,
    read: Callable[[Tensor, Any], tuple[Tensor, Any]],
    join: Callable[[Sequence[Any]], Any],
    take: Callable[[Any, Sequence[int]], Any],
    tolerance: float = EXACT,
) -> Sharing | None:
    """Which rows may be continued together: those of `any` lengths, of `equal` ones, `none`; None: not even a single row.

    ids (2, t), of which each sequence alone has the logits `whole` (2, t, vocab). `read(ids, state)` returns logits and the
    state, or raises UserError; `join` and `take` are those of `TorchModel`. Joining is correct where it reproduces `whole`.
    """

    def close(stepped: list[tuple[int, int, Tensor]]) -> bool:
        numbers, places, logits = zip(*stepped, strict=True)
        return is_close(torch.stack(logits), whole[list(numbers), list(places)], tolerance)

    def step(rows: list[tuple[int, int]], state: Any) -> tuple[list[tuple[int, int, Tensor]], Any]:
        """One step of rows, each given as a sequence and the position of the id that it reads."""
        numbers, places = (list(values) for values in zip(*rows, strict=True))
        logits, state = read(ids[numbers, places][:, None], state)
        return list(zip(numbers, places, logits[:, 0], strict=True)), state

    def together(starts: list[tuple[slice, int]]) -> bool:
        states = [read(ids[some, :length], None)[1] for some, length in starts]
        rows = [(number, length) for some, length in starts for number in range(2)[some]]
        state, stepped = states[0] if len(states) == 1 else join(states), []
        for order in _TAKEN:
            rows = [rows[place] for place in order]
            found, state = step(rows, take(state, order) if order != [0, 1] else state)
            stepped += found
            rows = [(number, place + 1) for number, place in rows]
        return close(stepped)

    def alone() -> bool:
        both, stepped = read(ids[:, :3], None)[1], []
        states = [take(both, [0]), take(both, [1])]
        for place in range(3, 6):
            for number in range(2):
                found, states[number] = step([(number, place)], states[number])
                stepped += found
        return close(stepped)

    failures = (UserError, ValueError, RuntimeError)
    for joining, starts in _STARTS.items():
        with contextlib.suppress(*failures):
            if together(starts):
                return joining
    with contextlib.suppress(*failures):
        return "none" if alone() else None
    return None
