"""A user's model, from a file of theirs or of this process, as a `ScoringModel`: run, and checked
on a few ids before it is used."""

from __future__ import annotations

import contextlib
import functools
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from recallkit.errors import UserError
from recallkit.models import probes
from recallkit.models.devices import choose_device, choose_dtype
from recallkit.models.prefix import score_behind
from recallkit.models.protocol import TokenScores
from recallkit.models.torch_model import TorchModel, wide
from recallkit.models.user import identify_function, open_function, own_tokenizer

if TYPE_CHECKING:
    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.plan import ModelPlan
    from recallkit.models.protocol import ScoringModel

__all__ = ["UserModule", "UserScoringModel", "identify", "load", "own_tokenizer"]

_PROTOCOL = ("vocab_size", "max_length", "batch_tokens", "score")

_PROBED_IDS = 64
"""Ids of the sequence that a module is checked on; a multiple of the chunk lengths of common
kernels."""


def identify(plan: ModelPlan) -> str:
    """See `user.identify_function`."""
    return identify_function(plan.location)


def load(plan: ModelPlan) -> ScoringModel:
    """Runs the function; `plan.device` is passed to it as torch names it, never as `auto`.

    A module is checked on random ids before it is used. Raises UserError for errors of the code,
    for a result that is not a model, and for a model that would give wrong scores: one that is not
    causal, or whose sequences see each other.
    """
    device = choose_device(plan.device)
    code, function = open_function(plan.location)
    try:
        with code.running(plan.location):
            product = function(replace(plan, device=str(device)))
            missing = [name for name in _PROTOCOL if not hasattr(product, name)]
        if not missing:
            return UserScoringModel(product, code, plan.location)
        if callable(product):
            return UserModule(product, code, plan, device)
    except MemoryError:
        problem = "out of memory while it was loaded and checked"
        raise UserError(problem, where=plan.location) from None
    problem = f"the function returned {kind_of_object(product)}, which is not a model"
    remedy = f"return a torch.nn.Module, or add {', '.join(missing)}"
    raise UserError(problem, where=plan.location, remedy=remedy)


class UserScoringModel:
    """A user's object that implements `ScoringModel`: `score`, and nothing more."""

    prefix: tuple[int, ...] = ()

    def __init__(self, inner: Any, code: Any, name: str) -> None:
        self.inner = inner
        self.code = code
        self.name = name
        self.vocab_size = _whole_number(inner.vocab_size, "vocab_size", name)
        self.max_length = _limit(inner.max_length, name)

    def batch_tokens(self, seq_len: int) -> int:
        """See `ScoringModel.batch_tokens`."""
        with self.code.running(self.name):
            return _whole_number(self.inner.batch_tokens(seq_len), "batch_tokens", self.name)

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        """See `ScoringModel.score`. Raises UserError unless it returns one value per prediction."""
        return score_behind(self.prefix, self._scored, ids, offsets)

    def _scored(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        with self.code.running(self.name):
            scores = self.inner.score(ids, offsets)
            arrays: dict[str, Any] = {}
            for name, dtype in TorchModel.columns.items():
                arrays[name] = np.asarray(getattr(scores, name)).astype(dtype)
        num_predictions = len(ids) - len(offsets) + 1
        for name, array in arrays.items():
            if array.shape != (num_predictions,):
                wanted = f"{num_predictions} numbers, one per prediction"
                remedy = "return recallkit.models.protocol.TokenScores"
                problem = f"score() returned no array {name} of {wanted}"
                raise UserError(problem, where=self.name, remedy=remedy)
        return TokenScores(**arrays)


class UserModule(TorchModel):
    """A user's torch module, or any callable from ids to logits, as a `ScoringModel`. `code`: the
    `user.UserCode` that it runs in."""

    prompt_chunk = 256

    def __init__(self, module: Any, code: Any, plan: ModelPlan, device: torch.device) -> None:
        self.module, self.code = module, code
        self.is_module = isinstance(module, torch.nn.Module)
        dtype = choose_dtype(plan.dtype)
        self.is_wide = dtype is torch.float64
        self.tolerance = torch.finfo(dtype).eps ** 0.5
        self.can_read = self.is_module and inspect.ismethod(getattr(module, "read", None))
        with code.running(plan.location):
            if self.is_module:
                _move(module, device, dtype)
                module.eval()
            vocab_size = getattr(module, "vocab_size", None)
            max_length = getattr(module, "max_length", None)
        known = 0 if vocab_size is None else _whole_number(vocab_size, "vocab_size", plan.location)
        super().__init__(
            plan.location,
            device,
            vocab_size=known,
            max_length=_limit(max_length, plan.location),
        )
        with torch.no_grad():
            if vocab_size is None:
                self.vocab_size = self._logits(
                    torch.zeros(1, 1, dtype=torch.int64, device=device),
                ).shape[2]
            self.num_ids = min(self.vocab_size, plan.vocab_size)
            self._probe()

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        *,
        carry: bool = False,
    ) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: logits. Raises UserError for a module that returns anything
        else."""
        return self._read_on(inputs, state) if carry else (self._logits(inputs), None)

    @property
    def can_carry(self) -> bool:
        """See `TorchModel.can_carry`."""
        return self.can_read

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        from recallkit.kernels.token_nll.api import logits_nll

        return logits_nll(outputs, targets)

    def logits(self, outputs: Tensor) -> Tensor:
        """See `TorchModel.logits`."""
        return wide(outputs)

    @functools.cached_property
    def can_join(self) -> bool:
        """See `TorchModel.can_join`."""
        if not self.can_read or 0 < (self.max_length or 0) < probes.PROBED_IDS:
            return False
        ids = probes.random_ids(self.num_ids, (2, probes.PROBED_IDS), self.device)
        with torch.no_grad():
            alone = torch.cat([self._logits(row) for row in ids[:, None]])
            return probes.can_join(
                ids,
                alone,
                self._read_on,
                self.logits,
                self.join,
                self.take,
                self.tolerance,
            )

    def _read_on(self, ids: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Logits (b, t, vocab) of ids (b, t) that follow a state, and the new state. Raises
        UserError for anything else."""
        product = self._call(self.module.read, ids, state)
        if not isinstance(product, tuple) or len(product) != 2:
            problem = f"returned {kind_of_object(product)}: logits and a state are expected"
            raise UserError(f"read(ids, state) {problem}", where=self.name)
        return self._checked(product[0], ids), product[1]

    def _logits(self, ids: Tensor) -> Tensor:
        """Logits (b, t, vocab) of ids (b, t). Raises UserError for anything else."""
        output = self._call(self.module, ids)
        return self._checked(getattr(output, "logits", output), ids)

    def _call(self, function: Any, *arguments: Any) -> Any:
        """Runs the user's code; for requests in float64 in float64 throughout, also where the
        module casts to a narrower dtype."""
        from recallkit.models.precision import widened

        with self.code.running(self.name), widened() if self.is_wide else contextlib.nullcontext():
            return function(*arguments)

    def _checked(self, output: Any, ids: Tensor) -> Tensor:
        b, t = ids.shape
        wanted = f"floating-point values ({b}, {t}, {self.vocab_size or 'vocab'}) are expected"
        product = kind_of_object(output)
        if isinstance(output, torch.Tensor):
            has_axes = output.ndim == 3 and output.shape[:2] == ids.shape
            if has_axes and output.is_floating_point() and self.vocab_size in (0, output.shape[2]):
                return output.to(self.device)
            dtype = str(output.dtype).removeprefix("torch.")
            product = f"{dtype} of shape {tuple(output.shape)}"
        problem = f"for ids of shape ({b}, {t}) it returned {product}: {wanted}"
        raise UserError(problem, where=self.name)

    def _probe(self) -> None:
        """Checks the module on random ids.

        Raises UserError where it is not causal, or gives other values from call to call, and where
        `read` in chunks differs from the module's own output.
        """
        ids = probes.random_ids(
            self.num_ids,
            (2, min(_PROBED_IDS, self.max_length or _PROBED_IDS)),
            self.device,
        )
        self.sharing = probes.find_sharing(self._logits, ids, self.name, self.tolerance)
        if self.can_read:
            state, logits = None, []
            for piece in ids.tensor_split((2, 3, 4, ids.shape[1] // 2), dim=1):
                if piece.shape[1]:
                    some, state = self._read_on(piece, state)
                    logits.append(some)
            if not probes.is_close(torch.cat(logits, dim=1), self._logits(ids), self.tolerance):
                remedy = "continue from the whole state that read returned for the ids before"
                raise UserError(
                    "read(ids, state) in chunks is not what the module returns at once",
                    where=self.name,
                    remedy=remedy,
                )


def kind_of_object(product: Any) -> str:
    """What a function returned, in words."""
    return "None" if product is None else f"an object of {type(product).__name__}"


def _move(module: torch.nn.Module, device: torch.device, dtype: torch.dtype) -> None:
    """`module.to(device, dtype)`, but complex values stay complex: torch would discard their
    imaginary part."""
    wide = dtype.to_complex() if dtype.itemsize >= 4 else torch.complex64
    module._apply(  # type: ignore[no-untyped-call]
        lambda x: x.to(
            device,
            dtype if x.is_floating_point() else wide if x.is_complex() else x.dtype,
        ),
    )


def _limit(max_length: Any, spec: str) -> int | None:
    """The longest context of a user's model; None where there is no limit."""
    return None if max_length is None else _whole_number(max_length, "max_length", spec)


def _whole_number(value: Any, name: str, spec: str) -> int:
    """The value as a positive int. Raises UserError for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise UserError(f"its {name} is {value!r}, not a positive integer", where=spec)
    return int(value)
