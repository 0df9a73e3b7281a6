"""Properties of a causal language model that are measured on a few ids rather than inferred from
its name.

Families differ in what they do to their logits, in whether a longer batch changes a shorter
sequence, and in how their state can be carried; the answers here are those of the very model that
was loaded.
"""

from __future__ import annotations

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
"""Differences of logits below this fraction of the largest one count as rounding error, in float32
or wider."""

_RULED_OUT = 1e30

_LEAK = 1e-3
"""Where a token's score changes by more than this fraction with what follows it, the model is not
causal."""


@dataclass(frozen=True, slots=True)
class Head:
    """How logits follow from hidden states: z = `factor` * (W hidden + bias), then `cap` * tanh(z /
    `cap`)."""

    factor: float
    cap: float | None = None


def random_ids(vocab_size: int, shape: tuple[int, int], device: torch.device) -> Tensor:
    """The same ids on every run, (b, t) int64."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(vocab_size, shape, generator=generator).to(device)


def is_close(outputs: Tensor, wanted: Tensor, tolerance: float = EXACT) -> bool:
    """Whether outputs differ by no more than `tolerance` times the largest wanted value.

    Entries that a model masks (-inf, or the lowest number of its dtype) must be the same, and do
    not count as the largest value.
    """
    ordinary = wanted.abs() < _RULED_OUT
    if outputs.shape != wanted.shape or not torch.equal(outputs.abs() < _RULED_OUT, ordinary):
        return False
    outputs, wanted = outputs[ordinary], wanted[ordinary]
    return not wanted.numel() or bool(
        (outputs - wanted).abs().max() <= tolerance * wanted.abs().max(),
    )


def find_head(model: Any, run: Callable[..., Any], ids: Tensor) -> Head | None:
    """How logits follow from the backbone's last hidden states; None where `Head` cannot express
    it.

    `run(module, ids)` returns a module's output. A forward pass in which known values replace the
    linear layer's output shows what is done to it, however small the model's own logits are.
    """
    linear = model.get_output_embeddings()
    states = getattr(run(model.base_model, ids), "last_hidden_state", None)
    if not isinstance(linear, torch.nn.Linear) or not isinstance(states, torch.Tensor):
        return None
    records: list[tuple[Tensor, Tensor]] = []

    def see(_: Any, inputs: tuple[Any, ...], output: Tensor) -> Tensor:
        records.append((inputs[0], _marks(output)))
        return records[-1][1]

    hook = linear.register_forward_hook(see)
    try:
        logits = getattr(run(model, ids), "logits", None)
    finally:
        hook.remove()
    if len(records) != 1 or not isinstance(logits, torch.Tensor):
        return None
    [(hidden, marks)] = records
    if logits.shape != marks.shape or hidden.shape != states.shape:
        return None
    expected, taken = states.double(), hidden.to(states.device).double()
    before = float((expected * taken).sum() / (expected * expected).sum())
    before = 1.0 if abs(before - 1) <= 1e-6 else before
    if not is_close(before * expected, taken, 1e-5) or (before != 1 and linear.bias is not None):
        return None
    # The smallest of the known values show the factor, the largest the cap.
    x, y = marks.to(logits.device).double().flatten(), logits.double().flatten()
    smallest, cap = x.abs().argmin(), float(y.abs().max())
    factor = float(y[smallest] / x[smallest])
    if _agree(factor * x, y):
        return Head(before * factor)
    factor = float(cap * torch.atanh(y[smallest] / cap) / x[smallest])
    return Head(before * factor, cap) if _agree(cap * torch.tanh(factor * x / cap), y) else None


def _marks(like: Tensor) -> Tensor:
    """Powers of two of either sign, from 2^-12 to 2^12, in the shape of logits."""
    places = torch.arange(like.numel(), device=like.device).view(like.shape)
    return torch.where(places % 2 == 0, 1.0, -1.0).to(like) * torch.exp2(
        (places % 25 - 12).to(like),
    )


def _agree(one: Tensor, other: Tensor) -> bool:
    return bool((((one - other).abs() <= 1e-5 * other.abs()) & other.isfinite()).all())


def find_sharing(
    logits: Callable[[Tensor], Tensor],
    ids: Tensor,
    name: str,
    tolerance: float = EXACT,
) -> Sharing:
    """Which sequences may share a batch, tried with `logits` (b, t, vocab) on ids like the two rows
    of `ids` (2, t).

    Raises UserError where a model is not causal: what follows a token changes its score.
    """
    num_shared = ids.shape[1] * 2 // 3
    other_end = torch.cat([ids[:1, :num_shared], ids[1:, num_shared:]], dim=1)
    together = logits(torch.cat([ids[:1], other_end]))[:, :num_shared]
    if not is_close(together[1], together[0], max(_LEAK, tolerance)):
        problem = "it is not causal: later ids change earlier predictions"
        raise UserError(
            problem,
            where=name,
            remedy="its scores would mean nothing; give a causal language model, with dropout off",
        )
    if is_close(together[:1], logits(ids[:1, :num_shared]), tolerance):
        return "any"
    return "equal" if is_close(together[:1], logits(ids[:1])[:, :num_shared], tolerance) else "none"


@dataclass(frozen=True, slots=True)
class Carrying:
    """How a model's state is carried: into `chunks` of any length, or only in `steps` of one id
    once there is a state.

    `positions`: whether the model must be given the positions of the ids that follow.
    """

    pieces: Literal["chunks", "steps"]
    positions: bool


WAYS = [
    Carrying("chunks", positions=True),
    Carrying("chunks", positions=False),
    Carrying("steps", positions=True),
    Carrying("steps", positions=False),
]
"""The fastest first."""


_TAKEN = ([0, 1], [0, 1], [1, 0, 1], [1, 2], [1])
"""For each step, which of the previous rows take it."""


def can_join(
    ids: Tensor,
    alone: Tensor,
    read: Callable[[Tensor, Any], tuple[Tensor, Any]],
    logits: Callable[[Tensor], Tensor],
    join: Callable[[Sequence[Any]], Any],
    take: Callable[[Any, Sequence[int]], Any],
    tolerance: float = EXACT,
) -> bool:
    """Whether rows that have read different numbers of ids can be continued together, one id at a
    time.

    ids (2, t), of which each sequence alone has the outputs `whole` (2, t, ...). `read(ids, state)`
    returns outputs and the state, or raises UserError; `join`, `take` and `logits` are those of
    `TorchModel`. Joining is correct where it reproduces the logits of `whole`.
    """
    most = ids.shape[1] - len(_TAKEN) - 2
    # A sequence, and how many of its ids are read before the states are joined.
    rows = [(1, most), (0, most * 2 // 3)]
    try:
        state = join([read(ids[number : number + 1, :length], None)[1] for number, length in rows])
        for order in _TAKEN:
            numbers = [rows[place][0] for place in order]
            places = [rows[place][1] for place in order]
            outputs, state = read(
                ids[numbers, places][:, None],
                take(state, order) if order != [0, 1] else state,
            )
            if not is_close(logits(outputs[:, 0]), logits(alone[numbers, places]), tolerance):
                return False
            rows = [(number, place + 1) for number, place in zip(numbers, places, strict=True)]
    except (UserError, ValueError, RuntimeError, IndexError):
        return False
    return True
