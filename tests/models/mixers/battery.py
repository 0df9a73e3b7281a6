"""What every mixer must keep: one value whichever way it is computed, causality, rows apart,
gradients everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from recallkit.models.mixers.api import Mixer, State
from recallkit.models.states import find_layout

LENGTHS = (1, 2, 7, 33)
PIECES = (1, 5, 2, 13, 12)
"""They add up to the longest of the lengths."""
VOCAB = 11
HALF_PRECISION = 0.03
"""Most that bfloat16, which rounds at one in 256, may be off, as a share of the largest value."""


def randomised(mixer: Mixer, seed: int = 0) -> Mixer:
    """The mixer with parameters moved at random, so that nothing is at the zero, one or symmetry it
    starts with."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter += 0.1 * torch.randn(
                parameter.shape,
                generator=generator,
                dtype=torch.float64,
            ).to(parameter.dtype)
    return mixer


def inputs(mixer: Mixer, t: int, batch: int = 2, seed: int = 1) -> tuple[Tensor, Tensor | None]:
    """u (b, t, d) of standard normal float64 values, and ids (b, t) of few kinds where the mixer
    needs them."""
    generator = torch.Generator().manual_seed(seed)
    u = torch.randn(batch, t, mixer.d_model, generator=generator, dtype=torch.float64)
    ids = torch.randint(VOCAB, (batch, t), generator=generator) if mixer.needs_ids else None
    return u, ids


def difference(one: Tensor, other: Tensor) -> float:
    """The largest difference as a share of the largest wanted value."""
    assert one.shape == other.shape, (one.shape, other.shape)
    return float(
        (one.double() - other.double()).abs().max() / other.double().abs().max().clamp(min=1e-30),
    )


def check_mixer(
    make: Callable[[], Mixer],
    *,
    single: float = 2e-4,
    lengths: Sequence[int] = LENGTHS,
) -> None:
    """Runs every check on a mixer that `make` makes; `single` bounds float32's error, at `lengths`
    its reference is compared."""
    torch.manual_seed(0)
    mixer = randomised(make()).double().eval()
    _check_forward(mixer, lengths)
    _check_causality(mixer)
    _check_rows(mixer)
    _check_steps(mixer)
    _check_ragged_rows(mixer)
    _check_costs(mixer)
    _check_single_precision(make, single)
    _check_half_precision(make)
    _check_training(make)


def _check_forward(mixer: Mixer, lengths: Sequence[int]) -> None:
    for t in lengths:
        u, ids = inputs(mixer, t)
        with torch.no_grad():
            actual, wanted = mixer(u, ids), mixer.reference(u, ids)
        assert actual.dtype == torch.float64
        assert actual.shape == u.shape
        assert actual.abs().max() > 0, "an output of zeros shows nothing"
        assert difference(actual, wanted) < 1e-9, f"forward differs from the reference at t = {t}"


def _check_causality(mixer: Mixer) -> None:
    t, cut = LENGTHS[-1], max(LENGTHS[-1] // 2, mixer.prefix)
    u, ids = inputs(mixer, t)
    other, other_ids = inputs(mixer, t, seed=2)
    mixed = torch.cat([u[:, :cut], other[:, cut:]], dim=1)
    mixed_ids = (
        None
        if ids is None or other_ids is None
        else torch.cat([ids[:, :cut], other_ids[:, cut:]], dim=1)
    )
    with torch.no_grad():
        before, after = mixer(u, ids), mixer(mixed, mixed_ids)
    assert difference(after[:, :cut], before[:, :cut]) < 1e-9, "what follows changes what was"
    assert difference(after[:, cut:], before[:, cut:]) > 1e-6, "inputs do not matter"


def _check_rows(mixer: Mixer) -> None:
    u, ids = inputs(mixer, LENGTHS[-1])
    with torch.no_grad():
        both = mixer(u, ids)
        alone = torch.cat(
            [mixer(u[i : i + 1], None if ids is None else ids[i : i + 1]) for i in range(len(u))],
        )
    assert difference(both, alone) < 1e-9, "rows see each other"


def _check_steps(mixer: Mixer) -> None:
    t = LENGTHS[-1]
    u, ids = inputs(mixer, t)
    with torch.no_grad():
        at_once = mixer(u, ids)
        state, stepped = mixer.initial_state(len(u)), []
        if mixer.prefix:
            y, state = mixer.read(u[:, : mixer.prefix], state)
            stepped = list(y.unbind(1))
        for i in range(mixer.prefix, t):
            before = {name: value.clone() for name, value in state.items()}
            y, new = mixer.step(u[:, i], state, None if ids is None else ids[:, i])
            assert all(torch.equal(state[name], before[name]) for name in before), (
                "a step changed the state it was given"
            )
            stepped.append(y)
            state = new
        assert difference(torch.stack(stepped, dim=1), at_once) < 1e-9, "steps differ from forward"
        assert difference(_read(mixer, u, ids, PIECES)[0], at_once) < 1e-9, (
            "pieces differ from forward"
        )
        assert difference(_read(mixer, u, ids, (t - 1, 1))[0], at_once) < 1e-9, (
            "a step after a long piece differs from forward"
        )


def _read(
    mixer: Mixer,
    u: Tensor,
    ids: Tensor | None,
    pieces: tuple[int, ...],
) -> tuple[Tensor, State]:
    """In pieces, of which those that end within the prefix are read with the next one: it is read
    at once."""
    state, outputs, start, end = mixer.initial_state(len(u)), [], 0, 0
    for size in pieces:
        end += size
        if start or end >= min(mixer.prefix, u.shape[1]):
            y, state = mixer.read(
                u[:, start:end],
                state,
                None if ids is None else ids[:, start:end],
            )
            outputs.append(y)
            start = end
    return torch.cat(outputs, dim=1), state


def _check_ragged_rows(mixer: Mixer) -> None:
    """Rows that have read different numbers of tokens are joined as generation joins them, and go
    on as if alone."""
    t = LENGTHS[-1]
    u, ids = inputs(mixer, t)
    lengths = (t - 3, max(4, mixer.prefix))
    with torch.no_grad():
        at_once = mixer(u, ids)
        one, two, longer = (
            _read(mixer, *inputs(mixer, t, batch), (t,))[1] for batch, t in ((1, 2), (2, 2), (1, 3))
        )
        layout = find_layout(one, two, longer)
        states = [
            _read(mixer, u[i : i + 1], None if ids is None else ids[i : i + 1], (length,))[1]
            for i, length in enumerate(lengths)
        ]
        state = layout.join(states)
        for more in range(3):
            at = [length + more for length in lengths]
            u_next = torch.stack([u[i, place] for i, place in enumerate(at)])
            ids_next = (
                None if ids is None else torch.stack([ids[i, place] for i, place in enumerate(at)])
            )
            y, state = mixer.step(u_next, state, ids_next)
            assert (
                difference(y, torch.stack([at_once[i, place] for i, place in enumerate(at)])) < 1e-9
            ), "joined rows differ"
        y, _ = mixer.step(
            u[1:, lengths[1] + 3],
            layout.take(state, [1]),
            None if ids is None else ids[1:, lengths[1] + 3],
        )
        assert difference(y, at_once[1:, lengths[1] + 3]) < 1e-9, "a row taken from a batch differs"


def _check_costs(mixer: Mixer) -> None:
    sizes = [mixer.state_size(t) for t in (1, 64, 256)]
    work = [mixer.flops(t) for t in (1, 64, 256)]
    assert all(isinstance(value, int) and value >= 0 for value in sizes + work)
    assert sizes == sorted(sizes)
    assert work == sorted(set(work))
    assert work[0] > 0


def _check_single_precision(make: Callable[[], Mixer], bound: float) -> None:
    torch.manual_seed(0)
    wide = randomised(make()).double().eval()
    torch.manual_seed(0)
    narrow = randomised(make()).eval()
    u, ids = inputs(wide, LENGTHS[-1])
    with torch.no_grad():
        actual, wanted = narrow(u.float(), ids), wide(u, ids)
    assert actual.dtype == torch.float32
    assert difference(actual, wanted) < bound, "float32 is far from float64"


def _check_half_precision(make: Callable[[], Mixer]) -> None:
    """Parameters and inputs in bfloat16, read at once and in pieces, against the same rounded
    numbers in float64."""
    torch.manual_seed(0)
    narrow = randomised(make()).to(torch.bfloat16).eval()
    wide = make().double().eval()
    wide.load_state_dict(narrow.state_dict())
    u, ids = inputs(wide, LENGTHS[-1])
    u = u.bfloat16()
    with torch.no_grad():
        wanted = wide(u.double(), ids)
        for way, actual in (
            ("forward", narrow(u, ids)),
            ("pieces", _read(narrow, u, ids, PIECES)[0]),
        ):
            assert actual.dtype == torch.bfloat16, f"{way} of bfloat16 is {actual.dtype}"
            assert difference(actual, wanted) < HALF_PRECISION, (
                f"{way} in bfloat16 is far from float64: {difference(actual, wanted)}"
            )


def _check_training(make: Callable[[], Mixer]) -> None:
    torch.manual_seed(0)
    mixer = randomised(make()).train()
    u, ids = inputs(mixer, LENGTHS[-1])
    with torch.autocast("cpu", torch.bfloat16):
        actual = mixer(u.float(), ids)
        loss = actual.float().square().mean()
        extra = mixer.auxiliary_loss()
        (loss if extra is None else loss + extra).backward()
    for name, parameter in mixer.named_parameters():
        assert parameter.grad is not None, f"no gradient reaches {name}"
        assert torch.isfinite(parameter.grad).all(), f"a gradient of {name} is not finite"
        assert parameter.grad.abs().max() > 0, f"the gradient of {name} is zero"
