"""What every operation with a kernel must keep: each of its forms equals the float64 reference,
whole, in pieces and step by step."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from recallkit.kernels.choice import preferring
from tests.kernels.checks import DEVICE, TOLERANCES, assert_close, draw, pairwise

Arguments = dict[str, Tensor]


def exactly(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The same numbers in float64."""
    return {
        name: value.double() if isinstance(value, Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }


def layouts(arguments: Arguments) -> Iterator[Arguments]:
    """The same numbers, laid out as parts of wider tensors, with the first two axes exchanged, the
    last two, and one way each."""
    ways: list[Callable[[Tensor], Tensor]] = [
        lambda x: torch.cat([x, x], dim=-1)[..., x.shape[-1] :],
        lambda x: (
            x.transpose(0, 1).contiguous().transpose(0, 1)
            if x.ndim > 1
            else x.repeat_interleave(2)[::2]
        ),
        lambda x: x.mT.contiguous().mT if x.ndim > 1 else x.repeat_interleave(2)[::2],
    ]
    for way in ways:
        yield {name: way(value) for name, value in arguments.items()}
    yield {
        name: ways[place % len(ways)](value)
        for place, (name, value) in enumerate(arguments.items())
    }


class Battery:
    """Tests of one operation, which a subclass in its own file describes.

    `run` returns what the operation does as a tuple, the outputs first. `time`, `rows`: the axes of
    tokens and of texts, by the names of the arguments that have them. `options`: names of arguments
    that may be missing. `sizes`: what `given` takes beside a type, for PyTorch and for the
    interpreted kernel. `times`: how often TOLERANCES' error is allowed.
    """

    time: ClassVar[dict[str, int]]
    rows: ClassVar[dict[str, int]]
    out_time: ClassVar[int] = 0
    out_rows: ClassVar[int] = 1
    options: ClassVar[tuple[str, ...]] = ()
    state: ClassVar[tuple[str, ...]] = ()
    sizes: ClassVar[Sequence[Sequence[int]]]
    triton_sizes: ClassVar[Sequence[Sequence[int]]]
    dtypes: ClassVar[Sequence[torch.dtype]] = list(TOLERANCES)
    times: ClassVar[float] = 1
    small_chunks: ClassVar[dict[str, int]] = {}
    traced: ClassVar[tuple[str, ...]]
    misfits: ClassVar[Sequence[tuple[dict[str, Any], str]]]
    mixers: ClassVar[Mapping[str, Callable[[], nn.Module]]] = {}

    def operands(self, *sizes: int, dtype: torch.dtype) -> Arguments:
        """The arguments by name, options and state too, at `sizes` (tokens, texts, widths)."""
        raise NotImplementedError

    def run(self, arguments: Mapping[str, Any], impl: str) -> tuple[Tensor, ...]:
        """The operation's outputs, then its state."""
        raise NotImplementedError

    def some(self, t: int, b: int = 2, dtype: torch.dtype = torch.float32) -> Arguments:
        """Arguments of a small width for so many tokens and texts."""
        raise NotImplementedError

    def traceable(self) -> list[tuple[Any, ...]]:
        """Arguments of the registered operations `traced`, each with all options and with none."""
        raise NotImplementedError

    def out_dtype(self, dtype: torch.dtype) -> torch.dtype:
        return dtype

    def state_dtype(self, arguments: Arguments, dtype: torch.dtype) -> torch.dtype:
        return torch.promote_types(dtype, torch.float32)

    def assert_states_close(
        self,
        state: Sequence[Tensor],
        exact: Sequence[Tensor],
        *,
        times: float = 1,
    ) -> None:
        """Nothing but the inputs is rounded to half precision: a state is as exact as float32
        is."""
        for mine, theirs in zip(state, exact, strict=True):
            assert_close(mine, theirs, times=times)

    def check(
        self,
        arguments: Arguments,
        impl: str,
        *,
        dtype: torch.dtype | None = None,
        times: float | None = None,
    ) -> None:
        """Outputs and state against the reference in float64."""
        times = self.times if times is None else times
        dtype = dtype or next(iter(arguments.values())).dtype
        y, *state = self.run(arguments, impl)
        exact, *exact_state = self.run(exactly(arguments), "reference")
        assert y.dtype == self.out_dtype(dtype)
        assert {part.dtype for part in state} <= {self.state_dtype(arguments, dtype)}
        assert_close(y, exact, dtype=dtype, times=times)
        self.assert_states_close(state, exact_state, times=times)

    def bare(self, arguments: Arguments) -> Arguments:
        return {
            name: value
            for name, value in arguments.items()
            if name not in (*self.options, *self.state)
        }

    def part(
        self,
        arguments: Arguments,
        steps: slice,
        state: Sequence[Tensor] | None = None,
    ) -> Arguments:
        """The arguments of some tokens only, going on from a state."""
        results = {name: value for name, value in arguments.items() if name not in self.state}
        results |= {
            name: x[(slice(None),) * self.time[name] + (steps,)]
            for name, x in results.items()
            if name in self.time
        }
        return results | dict(zip(self.state, state or (), strict=bool(state)))

    def shorten_chunks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, size in self.small_chunks.items():
            module, _, attribute = name.rpartition(".")
            monkeypatch.setattr(importlib.import_module(module), attribute, size)

    def test_torch_equals_reference(self) -> None:
        for sizes, dtype, all_options in pairwise(self.sizes, self.dtypes, [True, False]):
            arguments = self.operands(*sizes, dtype=dtype)
            self.check(arguments if all_options else self.bare(arguments), "torch", dtype=dtype)
        for t in range(1, 18):
            self.check(self.some(t, dtype=torch.float64), "torch")

    @pytest.mark.parametrize("all_options", [True, False])
    @pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
    def test_triton_equals_reference(self, all_options: bool) -> None:
        for sizes in self.triton_sizes:
            arguments = self.operands(*sizes, dtype=torch.float32)
            self.check(arguments if all_options else self.bare(arguments), "triton")

    def test_triton_takes_each_option_alone(self) -> None:
        arguments = self.some(5)
        for name in (*self.options, *((self.state,) if self.state else ())):
            names = (name,) if isinstance(name, str) else name
            self.check(self.bare(arguments) | {item: arguments[item] for item in names}, "triton")

    @pytest.mark.parametrize("impl", ["torch", "triton"])
    def test_any_strides(self, impl: str) -> None:
        arguments = self.some(6)
        wanted = self.run(exactly(arguments), "reference")
        for way in layouts(arguments):
            y, *state = self.run(way, impl)
            assert_close(y, wanted[0], dtype=torch.float32, times=self.times)
            self.assert_states_close(state, wanted[1:], times=self.times)

    @pytest.mark.parametrize("impl", ["torch", "triton"])
    def test_a_text_does_not_depend_on_the_others(self, impl: str) -> None:
        arguments = self.some(5, 3)
        alone = {
            name: x.narrow(self.rows[name], 1, 1) if name in self.rows else x
            for name, x in arguments.items()
        }
        actual, wanted = self.run(alone, impl), list(self.run(arguments, impl))
        wanted = [
            wanted[0].narrow(self.out_rows, 1, 1),
            *(x.narrow(self.rows[n], 1, 1) for n, x in zip(self.state, wanted[1:], strict=True)),
        ]
        assert_close(actual[0], wanted[0])
        if impl == "triton":
            assert all(
                torch.equal(mine, theirs) for mine, theirs in zip(actual, wanted, strict=True)
            )

    @pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
    def test_of_nothing_comes_nothing(self, impl: str) -> None:
        no_tokens, no_texts = self.some(0), self.some(4, 0)
        y, *state = self.run(no_tokens, impl)
        assert y.shape[self.out_time] == 0
        assert all(
            torch.equal(mine, no_tokens[name]) for name, mine in zip(self.state, state, strict=True)
        )
        y, *state = self.run(no_texts, impl)
        assert (y.shape[self.out_rows], y.shape[self.out_time]) == (0, 4)
        assert all(
            mine.shape == no_texts[name].shape for name, mine in zip(self.state, state, strict=True)
        )

    def differentiable(
        self,
        arguments: Arguments,
        impl: str,
    ) -> tuple[Callable[..., tuple[Tensor, ...]], list[Tensor]]:
        """The operation as a function of tensors, and those."""
        return lambda *values: self.run(dict(zip(arguments, values, strict=True)), impl), list(
            arguments.values(),
        )

    @pytest.mark.parametrize("impl", ["reference", "torch"])
    def test_gradients_are_the_derivatives(
        self,
        impl: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.shorten_chunks(monkeypatch)
        for t in (1, 5):
            arguments = self.some(t, 1, dtype=torch.float64)
            for chosen in (arguments, self.bare(arguments)):
                run, values = self.differentiable(chosen, impl)
                assert torch.autograd.gradcheck(
                    run,
                    [value.clone().requires_grad_() for value in values],
                )

    def test_where_gradients_are_wanted_there_is_no_kernel(self) -> None:
        arguments = self.some(3)
        first = next(iter(arguments))
        wanted = arguments | {first: arguments[first].clone().requires_grad_()}
        with preferring("triton"):
            assert torch.equal(self.run(wanted, "auto")[0], self.run(arguments, "torch")[0])
        for strange, message in ((wanted, "no backward pass"), (exactly(arguments), "not float64")):
            with pytest.raises(ValueError, match=message):
                self.run(strange, "triton")

    def test_triton_is_an_operation_that_torch_can_trace(self) -> None:
        for name, arguments in zip(self.traced, self.traceable(), strict=True):
            module, _, operation = name.rpartition(".")
            for operands in arguments:
                torch.library.opcheck(getattr(importlib.import_module(module), operation), operands)
        arguments = self.some(3)
        first = next(iter(arguments))
        # Shapes of other operations, compiled in this process by the same line, would make those
        # here symbolic.
        torch.compiler.reset()
        compiled = torch.compile(
            lambda x: self.run(arguments | {first: x}, "triton")[0],
            backend="aot_eager",
            fullgraph=True,
        )
        with torch.inference_mode():
            assert torch.equal(compiled(arguments[first]), self.run(arguments, "triton")[0])

    def test_what_does_not_fit_is_named(self) -> None:
        arguments = self.some(4)
        for changes, message in self.misfits:
            shaped = {
                name: torch.zeros(value, device=DEVICE) if isinstance(value, tuple) else value
                for name, value in changes.items()
            }
            with pytest.raises(ValueError, match=message):
                self.run(arguments | shaped, "auto")

    @pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning")
    def test_mixers_on_the_kernel_are_their_references(self) -> None:
        """A text at once, and a beginning, a piece and a step."""
        for name, make in self.mixers.items():
            torch.manual_seed(0)
            mixer = make().to(DEVICE).eval()
            u = draw(2, 12, mixer.d_model)
            with torch.no_grad(), preferring("triton"):
                for parameter in mixer.parameters():
                    parameter += 0.1 * torch.randn_like(parameter)
                wanted = mixer.double().reference(u.double())
                assert wanted.abs().max() > 0, name
                at_once, state, outputs = mixer.float()(u), mixer.initial_state(2), []
                for piece in (slice(0, 9), slice(9, 11)):
                    y, state = mixer.read(u[:, piece], state)
                    outputs.append(y)
                y, _ = mixer.step(u[:, 11], state)
            assert_close(at_once, wanted, times=5)
            assert_close(torch.cat([*outputs, y[:, None]], 1), wanted, times=5)


class StatefulBattery(Battery):
    """Tests of an operation that goes on from a state."""

    def step(
        self,
        arguments: Arguments,
        i: int,
        state: Sequence[Tensor],
        impl: str,
    ) -> tuple[Tensor, ...]:
        """One token after a state, its output with an axis of time."""
        return self.run(self.part(arguments, slice(i, i + 1), state), impl)

    @pytest.mark.parametrize(("impl", "offsets"), [("torch", range(10)), ("triton", (0, 1, 4, 6))])
    def test_a_text_in_two_pieces_is_the_whole(
        self,
        impl: str,
        offsets: Sequence[int],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        self.shorten_chunks(monkeypatch)
        arguments = self.some(9)
        exact, *exact_state = self.run(exactly(arguments), "reference")
        for offset in offsets:
            first, *state = self.run(
                self.part(arguments, slice(0, offset), [arguments[name] for name in self.state]),
                impl,
            )
            second, *last = self.run(self.part(arguments, slice(offset, 9), state), impl)
            assert_close(torch.cat([first, second], self.out_time), exact, times=self.times)
            self.assert_states_close(last, exact_state, times=self.times)

    @pytest.mark.parametrize("impl", ["reference", "torch", "triton"])
    def test_a_beginning_and_then_steps_are_the_whole(self, impl: str) -> None:
        arguments = self.some(8)
        exact, *exact_state = self.run(exactly(arguments), "reference")
        y, *state = self.run(
            self.part(arguments, slice(0, 4), [arguments[name] for name in self.state]),
            impl,
        )
        outputs = [y]
        for i in range(4, 8):
            before = [part.clone() for part in state]
            y, *new = self.step(arguments, i, state, impl)
            assert all(
                torch.equal(mine, theirs) for mine, theirs in zip(before, state, strict=True)
            ), "a given state has changed"
            state = new
            outputs.append(y)
        assert_close(torch.cat(outputs, self.out_time), exact, times=2 * self.times)
        self.assert_states_close(state, exact_state, times=2 * self.times)
