"""What linear recurrences with decays must keep, whichever decays they have: one result however it is computed or cut in time."""

from __future__ import annotations

import itertools
import logging
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from recallkit.kernels import choice, fla
from tests.kernels.checks import assert_close, pairwise, relative_error

Inputs = dict[str, Tensor]

SIZES = [(1, 8, 60), (2, 16, 1), (15, 24, 100), (16, 16, 96), (17, 1, 16), (63, 8, 60), (64, 16, 96), (65, 24, 8), (130, 24, 100)]
"""Tokens (around chunks of 16 and of 64) and widths of keys and of values."""

of_all_sizes = pytest.mark.parametrize(
    ("sizes", "dtype", "std"), pairwise(SIZES, [torch.float64, torch.float32, torch.float16, torch.bfloat16], [1.0, 3.0])
)
"""Every size in every type, and each of both with small and with large queries and keys."""


@dataclass(frozen=True)
class Recurrence:
    """`attend`: the operation; `draw`: its inputs by name, from b, h, t, k, v, a type, the std of q and k, and how strong decays are."""

    attend: Callable[..., tuple[Tensor, Tensor]]
    draw: Callable[..., Inputs]

    def exact(self, given: Inputs, state: Tensor | None = None, **options: Any) -> tuple[Tensor, Tensor]:
        """By the reference in float64, of the inputs as they were rounded."""
        wide = {name: x.double() for name, x in given.items()}
        return self.attend(**wide, state=None if state is None else state.double(), impl="reference", **options)

    def check(self, given: Inputs, state: Tensor | None = None, *, impl: str = "torch", times: float = 1, **options: Any) -> None:
        """Against the reference: o in the type of v, S in float32 at least."""
        o, after = self.attend(**given, state=state, impl=impl, **options)
        exact, exact_after = self.exact(given, state, **{name: value for name, value in options.items() if name != "chunk"})
        assert o.dtype == given["v"].dtype
        assert after.dtype == torch.promote_types(o.dtype, torch.float32)
        assert_close(o, exact, times=times)
        # What S is made of is not rounded.
        assert_close(after, exact_after, times=times)

    def check_cuts(self, chunk: int) -> None:
        """Whole = split at every offset of one chunk, = some tokens at once and the rest one by one, = a reference that is cut."""
        given = self.draw(1, 2, 2 * chunk + 3, 4, 5, torch.float64)
        state = torch.randn(1, 2, 4, 5, dtype=torch.float64)
        whole = self.attend(**given, state=state, impl="torch", chunk=chunk)
        for impl, offset in itertools.product(("torch", "reference"), range(chunk + 1)):
            _assert_same(self._in_pieces(given, state, [offset, 2 * chunk + 3 - offset], impl, chunk), whole)
        _assert_same(self._in_pieces(given, state, [chunk + 1] + [1] * (chunk + 2), "torch", chunk), whole)

    def _in_pieces(self, given: Inputs, state: Tensor, lengths: list[int], impl: str, chunk: int) -> tuple[Tensor, Tensor]:
        outputs, start = [], 0
        for length in lengths:
            piece = {name: x[:, :, start : start + length] if x.ndim > 2 else x for name, x in given.items()}
            o, state = self.attend(**piece, state=state, impl=impl, chunk=chunk)
            outputs.append(o)
            start += length
        return torch.cat(outputs, 2), state

    def check_sizes_and_strides(self) -> None:
        """No tokens or no rows; no contiguous input; the state that is given stays as it is."""
        state = torch.randn(2, 2, 8, 60)
        for impl in ("torch", "reference"):
            o, after = self.attend(**self.draw(2, 2, 0, 8, 60, torch.float32), state=state, impl=impl)
            assert o.shape == (2, 2, 0, 60)
            assert torch.equal(after, state)
            o, after = self.attend(**self.draw(0, 2, 7, 8, 60, torch.float32), impl=impl)
            assert (o.shape, after.shape) == ((0, 2, 7, 60), (0, 2, 8, 60))
        given = self.draw(2, 2, 37, 8, 60, torch.float32)
        wanted, before = self.attend(**given, state=state, impl="torch"), state.clone()
        spread = {name: _spread(x) for name, x in given.items()}
        assert not any(x.is_contiguous() for x in spread.values())
        _assert_same(self.attend(**spread, state=_spread(state), impl="torch"), wanted, most=1e-6)
        assert torch.equal(state, before)

    def check_gradients(self, t: int, chunk: int) -> None:
        """Those of every input and of the state are the derivatives."""
        given = self.draw(1, 2, t, 2, 3, torch.float64)
        state = torch.randn(1, 2, 2, 3, dtype=torch.float64)
        names, tensors = list(given), [x.detach().requires_grad_() for x in (*given.values(), state)]
        assert torch.autograd.gradcheck(
            lambda *values: self.attend(**dict(zip(names, values[:-1], strict=True)), state=values[-1], impl="torch", chunk=chunk), tensors
        )

    def check_without_the_library(self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
        """A named kernel says what to install, `auto` takes PyTorch and says why; the library is not imported for that."""
        monkeypatch.setattr(fla, "installed", lambda: False)
        given = self.draw(1, 2, 5, 8, 8, torch.float32)
        with torch.no_grad(), pytest.raises(ValueError, match=r"impl='triton' cannot run: it needs .*pip install 'recallkit-lm\[gpu\]'"):
            self.attend(**given, impl="triton")
        choice._say.cache_clear()
        with caplog.at_level(logging.INFO, "recallkit.kernels"), torch.no_grad():
            _assert_same(self.attend(**given), self.attend(**given, impl="torch"), most=0)
        assert "torch, because it needs flash-linear-attention" in caplog.text
        assert "fla" not in sys.modules

    def check_calls_of_the_library(self, monkeypatch: pytest.MonkeyPatch, kernel: Any, family: str, missing: tuple[None, ...] = ()) -> None:
        """Given as the library documents it, to its chunked kernel or the recurrent one, traced and not, with a state and without.

        `missing`: what the kernel takes after the inputs and is not given.
        """
        called = stand_in_for_the_library(monkeypatch)
        state = torch.randn(2, 2, 8, 12)
        with torch.inference_mode():
            for t, dtype, kind in (
                (1, torch.float32, "fused_recurrent"),
                (64, torch.bfloat16, "fused_recurrent"),
                (65, torch.bfloat16, "chunk"),
                (65, torch.float32, "fused_recurrent"),
            ):
                given = self.draw(2, 2, t, 8, 12, dtype)
                for start in (None, state):
                    self.check(given, start, impl="triton")
                    assert called.pop() == f"{kind}_{family}"
            self._check_traced(self.draw(2, 2, 5, 8, 12, torch.float32), state)
        given = self.draw(2, 2, 3, 8, 12, torch.float32)
        scale = () if "r" in given else (0.5,)
        for start in (None, state):
            torch.library.opcheck(kernel, (*given.values(), *missing, start, *scale))
        with torch.no_grad(), pytest.raises(ValueError, match="one type for all, not float32, float32, bfloat16"):
            self.attend(**given | {"v": given["v"].bfloat16()}, impl="triton")
        with pytest.raises(ValueError, match="no backward pass"):
            self.attend(**{name: x.requires_grad_() for name, x in given.items()}, impl="triton")

    def check_on_a_gpu(self, t: int, dtype: torch.dtype, widths: tuple[int, int], strength: float) -> None:
        """The library's kernel against the reference, with a state and without."""
        pytest.importorskip("fla")
        given = {name: x.cuda() for name, x in self.draw(2, 4, t, *widths, dtype, strength=strength).items()}
        state = torch.randn(2, 4, *widths, device="cuda")
        with torch.no_grad():
            for start in (None, state):
                self.check(given, start, impl="triton", times=2)
            self._check_traced(given, state)

    def _check_traced(self, given: Inputs, state: Tensor) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(lambda **inputs: self.attend(**inputs, state=state, impl="triton"), backend="aot_eager", fullgraph=True)
        _assert_same(compiled(**given), self.attend(**given, state=state, impl="triton"), most=0)

    def check_large_offsets(self) -> None:
        """More than 2^31 entries of each input: the last row is as if alone."""
        pytest.importorskip("fla")
        one = {name: x.cuda() for name, x in self.draw(1, 16, 4096, 64, 64, torch.bfloat16).items()}
        many = {name: x.expand(513, *x.shape[1:]) if x.ndim > 2 else x for name, x in one.items()}
        with torch.no_grad():
            o, state = self.attend(**many, impl="triton")
            alone, alone_state = self.attend(**one, impl="triton")
        for row in (0, 511, 512):
            _assert_same((o[row : row + 1], state[row : row + 1]), (alone, alone_state), most=0)


def stand_in_for_the_library(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Puts loops over tokens in the places of flash-linear-attention's functions, with the arguments that those take.

    Tests have no such library: what they can see is that it would be called as it documents. Returns the names that are called.
    """
    called: list[str] = []

    def recur(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, bonus: Tensor | None, scale: float, s: Tensor | None) -> Any:
        assert q.shape == k.shape
        assert q.shape[:3] == v.shape[:3] == decay.shape[:3]
        assert q.dtype == k.dtype == v.dtype
        assert s is None or s.dtype == torch.float32
        s, outputs = v.new_zeros(len(v), v.shape[2], k.shape[3], v.shape[3], dtype=torch.float32) if s is None else s, []
        for i in range(q.shape[1]):
            new = k[:, i, :, :, None].float() * v[:, i, :, None, :]
            before, s = s, decay[:, i, :, :, None].exp() * s + new
            seen = s if bonus is None else before + bonus[..., None] * new
            outputs.append(scale * (q[:, i, :, :, None] * seen).sum(-2))
        return torch.stack(outputs, 1).to(v.dtype), s

    def simple_gla(q, k, v, g, *, scale, initial_state, output_final_state):
        assert output_final_state
        return recur(q, k, v, g[..., None], None, scale, initial_state)

    def gla(q, k, v, g, *, scale, initial_state, output_final_state):
        assert output_final_state
        assert g.shape == k.shape
        return recur(q, k, v, g, None, scale, initial_state)

    def rwkv6(r, k, v, w, u, *, scale, initial_state, output_final_state):
        assert output_final_state
        assert w.shape == k.shape
        assert u.shape == k.shape[2:]
        return recur(r, k, v, w, u, scale, initial_state)

    def overwrite(q: Tensor, k: Tensor, v: Tensor, erase: Tensor, write: Tensor, decay: Tensor, scale: float, s: Tensor | None) -> Any:
        assert q.shape == k.shape == erase.shape == write.shape
        assert q.shape[:3] == v.shape[:3] == decay.shape[:3]
        assert q.dtype == k.dtype == v.dtype
        assert s is None or s.dtype == torch.float32
        s, outputs = v.new_zeros(len(v), v.shape[2], k.shape[3], v.shape[3], dtype=torch.float32) if s is None else s, []
        for i in range(q.shape[1]):
            found = torch.einsum("bhk,bhkv->bhv", erase[:, i].float(), s)
            s = decay[:, i, :, :, None].exp() * s + k[:, i, :, :, None].float() * v[:, i, :, None, :]
            s = s + write[:, i, :, :, None].float() * found[:, :, None, :]
            outputs.append(scale * (q[:, i, :, :, None] * s).sum(-2))
        return torch.stack(outputs, 1).to(v.dtype), s

    def delta_rule(q, k, v, *, beta, scale, initial_state, output_final_state, g=None):
        assert output_final_state
        g = torch.zeros_like(beta)[..., None] if g is None else g
        erase = -beta[..., None] * g.exp() * k
        wide = [x.float() for x in (q, k, beta[..., None] * v, erase, k)]
        o, s = overwrite(*wide, g, scale, initial_state)
        return o.to(v.dtype), s

    def gated_delta_rule(q, k, v, *, g, **options):
        assert g.shape == k.shape[:3]
        return delta_rule(q, k, v, g=g[..., None], **options)

    def kda(q, k, v, *, g, **options):
        assert g.shape == k.shape
        return delta_rule(q, k, v, g=g, **options)

    def rwkv7(*, r, w, k, v, a, b, scale, initial_state, output_final_state):
        assert output_final_state
        assert w.shape == k.shape
        assert a.dtype == b.dtype == v.dtype
        return overwrite(r, k, v, a, b, w, scale, initial_state)

    def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **options: Any) -> Any:
            called.append(name)
            return function(*given, **options)

        return call

    for function in (simple_gla, gla, rwkv6, delta_rule, gated_delta_rule, kda, rwkv7):
        names = [f"{kind}_{function.__name__}" for kind in ("chunk", "fused_recurrent")]
        module = types.SimpleNamespace(**{name: named(name, function) for name in names})
        monkeypatch.setitem(sys.modules, f"fla.ops.{function.__name__}", module)
    monkeypatch.setattr(fla, "installed", lambda: True)
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    return called


def _spread(x: Tensor) -> Tensor:
    """The same numbers, every other one in memory."""
    return torch.stack([x, torch.full_like(x, float("nan"))], -1)[..., 0]


def _assert_same(made: tuple[Tensor, Tensor], wanted: tuple[Tensor, Tensor], most: float = 1e-12) -> None:
    for one, other in zip(made, wanted, strict=True):
        assert relative_error(one, other) <= most
