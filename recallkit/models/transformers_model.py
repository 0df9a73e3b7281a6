"""Scoring of a transformers model: its hidden states, head, precision and carried state.

Hidden states come from the backbone and go through the head a few rows at a time, so that logits of
a whole batch are never materialised; where a model does more to its logits than a linear layer, a
factor and a soft cap, its own forward pass is used. A model's properties are measured on a few ids
(probes.py), not inferred from its name; what a window or a selection may change is tried again with
random ids of the length that is read, before it is read.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from accelerate.utils import align_module_device

from recallkit.display import console
from recallkit.errors import UserError
from recallkit.kernels.token_nll.api import logits_nll, token_nll
from recallkit.kernels.token_nll.reference import TokenNll
from recallkit.models import probes
from recallkit.models.devices import memory_errors
from recallkit.models.layer_kernels import own_kernels, redirect
from recallkit.models.precision import widened
from recallkit.models.torch_model import MOST_READING, TorchModel, wide
from recallkit.quiet_transformers import first_line, without_logs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from torch import Tensor

    from recallkit.models.compression import Compression
    from recallkit.models.protocol import Sharing


_STATES = ("past_key_values", "cache_params", "state")
"""Names of the state among a model's arguments and outputs."""

EXACT_SETTINGS: dict[str, int] = {"max_inference_chunksize": 1 << 62}
"""Settings of a configuration that avoid rounding: xLSTM otherwise rounds its state to bfloat16
between chunks."""

_LOGITS = 1 << 25
"""Logits in memory at a time where they are soft-capped or float64: 128 or 256 MB."""

_LEAST_PROBED, _MOST_PROBED = 256, 4096
"""Ids of a probe of more than a few, unless a window of the model's is longer than a quarter of
them."""

_WINDOWS = re.compile(r'"\w*(?:window|chunk|block|top_?k|budget|local)\w*": (\d+)')
"""Numbers that a configuration has under a name of a window, a block or a selection."""

_NOT_ROUNDING = 1e-2
"""Nats by which rounding never changes the NLLs of random ids in float32, on average: it may those
of a few."""

_RULED_OUT = 1e4
"""Nats that stand for any number above: the difference of two infinite ones is none."""


@dataclass(frozen=True)
class _Carried:
    """The state after `num_read` ids, in the model's own format."""

    cache: Any
    num_read: int
    """Of joined rows: that of the longest."""
    missing: Tensor
    """How many ids fewer than `num_read` each row (b,) has read: tensors that grow with them are
    left-padded by as many positions."""
    is_ragged: bool = False
    """Whether `missing` may be nonzero."""
    stored: tuple[Tensor, ...] = ()
    """Tensors that modules store in themselves, see `_keepers`."""


class TransformersModel(TorchModel):
    """A transformers model as a `ScoringModel` and, where its state can be carried, a
    `CarryingModel`.

    Raises UserError where it has no embeddings, fails on a few ids, or is not causal.
    """

    def __init__(self, model: Any, name: str, device: torch.device) -> None:
        model = text_model(model, name)
        config = model.config.get_text_config()
        vocab_size = int(model.get_output_embeddings().weight.shape[0])
        super().__init__(
            name,
            device,
            vocab_size=vocab_size,
            max_length=context_length(config, model.base_model),
        )
        self.model = model
        self.config = config
        # Convolutions on a GPU would otherwise use TF32.
        torch.backends.cudnn.allow_tf32 = False
        for setting, value in EXACT_SETTINGS.items():
            if hasattr(config, setting):
                setattr(config, setting, value)
        self._agreed: dict[tuple[Any, ...], bool] = {}
        self._joined: dict[int, bool] = {}
        self._way: probes.Carrying | None = None
        self._kernels: Callable[[], Any] = contextlib.nullcontext
        ids = self._probed_ids()
        with self._probing():
            self.head = probes.find_head(model, self._run, ids[:1])
        if redirect(model):
            self._take_kernels()
        with self._probing():
            self.sharing = probes.find_sharing(self._logits, ids, name)
        if self.sharing == "any" and _depends_on_length(config):
            self.sharing = "equal"

    @property
    def end_ids(self) -> frozenset[int]:
        """End-of-text ids of its generation configuration."""
        ends = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        return frozenset(ends if isinstance(ends, list | tuple) else [] if ends is None else [ends])

    @property
    def carrying(self) -> Literal["chunks", "steps"] | None:
        """Whether the state of a few ids is carried into further `chunks`, only in `steps` of one
        id, or not at all."""
        return None if self._way_of_carrying is None else self._way_of_carrying.pieces

    @property
    def carries_steps(self) -> bool:
        """See `TorchModel.carries_steps`."""
        return self.carrying == "steps"

    @property
    def can_carry(self) -> bool:
        """See `TorchModel.can_carry`."""
        return self.carrying is not None

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        *,
        carry: bool = False,
    ) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states, or logits where `Head` cannot express how they
        follow from hidden states."""
        # One id without a state is a whole sequence (see `pieces`), and needs no state.
        if carry and (state is not None or inputs.shape[1] > 1):
            return self._read_on(inputs, state, self._way or self._way_of_carrying)
        return self._outputs(self._run(self._reader, inputs)), None

    def pieces(self, num_inputs: int, chunk: int) -> list[int]:
        """See `TorchModel.pieces`: in the way that gives what one pass over as many ids does.

        Raises UserError where none does.
        """
        size = max(2, chunk)
        self._way = None
        if num_inputs <= size:
            return [num_inputs]
        fastest = self._way_of_carrying
        ways = probes.WAYS[probes.WAYS.index(fastest) :] if fastest else []
        way = self._way = self._way_over(len(self.prefix) + num_inputs, size, ways)
        if way is None:
            chunks = f"{num_inputs:,} ids in chunks of {size:,}"
            problem = f"its state cannot be carried over {chunks}: scores are not those of one pass"
            raise UserError(problem, where=self.name, remedy="read it in windows with --stride")
        return _pieces(way, num_inputs, size)

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`: logits are float32, or float64 where the model is."""
        with self._exactly():
            if self.head is None:
                return logits_nll(outputs, targets)
            hidden, weight, bias = self._operands(outputs, self.head)
            if self.head.cap is None and not self._is_reference:
                return token_nll(hidden, weight, targets, bias=bias)
            step = max(1, _LOGITS // self.vocab_size)
            rows = zip(torch.split(hidden, step), torch.split(targets, step), strict=True)
            parts = []
            for part, answers in rows:
                logits = _head_logits(part, weight, bias, self.head.cap)
                parts.append(logits_nll(logits, answers))
            return TokenNll(*(torch.cat(values) for values in zip(*parts, strict=True)))

    # ----------------------------------------------------------------------------------- running it

    @property
    def _reader(self) -> Any:
        """The module whose outputs `forward` returns."""
        return self.model if self.head is None else self.model.base_model

    def _run(self, module: Any, ids: Tensor, **more: Any) -> Any:
        """The output of the model or of its backbone. Raises UserError for what its code raises."""
        if not _parameters(module).isdisjoint({"use_cache", "kwargs"}):
            more = {"use_cache": False, **more}
        with (
            without_logs(),
            self._forward_errors(),
            memory_errors(),
            self._exactly(),
            self._kernels(),
        ):
            return module(input_ids=ids, **more)

    def _take_kernels(self) -> None:
        """Runs recurrent layers on our kernels from here on, if NLLs of random ids are those of
        transformers' own functions."""
        chunks = [size for size in self._windows() if size <= _LEAST_PROBED]
        if self._agree(self._changed_by_kernels, _LEAST_PROBED + max(chunks, default=0)):
            self._kernels = own_kernels
        else:
            problem = "our kernels do not reproduce its NLLs"
            console.note(f"{self.name}: {problem}, so transformers' own functions are used")

    def _windows(self) -> list[int]:
        """The sizes of windows, blocks and selections in its configuration."""
        settings = _WINDOWS.findall(self.config.to_json_string(use_diff=False))
        return list(map(int, settings))

    def _changed_by_kernels(self, num_ids: int) -> Tensor:
        """How NLLs by our kernels differ from those by the functions of transformers, past two
        chunks of the longest."""
        ids = self._probed_ids(num_ids)
        targets = ids.roll(-1, 1)
        theirs = self._nlls(self.forward(ids)[0], targets)
        with own_kernels():
            return (self._nlls(self.forward(ids)[0], targets) - theirs).abs()

    @contextlib.contextmanager
    def _forward_errors(self) -> Iterator[None]:
        try:
            yield
        except (UserError, MemoryError):
            raise
        except Exception as error:
            remedy = "check that its files fit the installed transformers"
            if self.is_half:
                remedy = "try --dtype float32"
            if self.compression is not None and self.compression.make_cache is not None:
                remedy = f"check {self.compression.shown}"
            elif hasattr(self.model, "hf_device_map"):
                remedy = "save it as safetensors, or leave out device=balanced"
            raise UserError(
                f"its forward pass fails ({first_line(error)})",
                where=self.name,
                remedy=remedy,
            ) from error

    def _outputs(self, output: Any) -> Tensor:
        outputs = getattr(output, "logits" if self.head is None else "last_hidden_state", None)
        if not isinstance(outputs, torch.Tensor):
            raise UserError(
                f"it returns no logits, but an object of {type(output).__name__}",
                where=self.name,
            )
        return outputs.to(self.device)

    @property
    def _is_reference(self) -> bool:
        return bool(self.model.dtype is torch.float64)

    def _exactly(self) -> contextlib.AbstractContextManager[None]:
        """The context in which a float64 model computes in float64 throughout."""
        return widened() if self._is_reference else contextlib.nullcontext()

    def _operands(self, outputs: Tensor, head: probes.Head) -> tuple[Tensor, Tensor, Tensor | None]:
        """Hidden states, weight and bias of which the logits are made, up to a soft cap."""
        linear = self.model.get_output_embeddings()
        with align_module_device(linear):  # which reads what is on a disk
            weight = linear.weight.to(outputs.device)
            bias = None if linear.bias is None else linear.bias.to(outputs.device)
        hidden = outputs
        if head.factor != 1:
            hidden, bias = (
                wide(outputs) * head.factor,
                None if bias is None else wide(bias) * head.factor,
            )
        if head.cap is None:
            return hidden, weight, bias
        return wide(hidden), wide(weight), None if bias is None else wide(bias)

    # -------------------------------------------------------------------------------- trying it out

    def _probed_ids(self, num_ids: int = probes.PROBED_IDS) -> Tensor:
        """Ids (2, t) that are valid for any model; `t` is at most `num_ids`.

        The id of padding is among them: some models count no position for it.
        """
        table = getattr(self.model.get_input_embeddings(), "weight", None)
        known = self.vocab_size if table is None else min(self.vocab_size, len(table))
        ids = probes.random_ids(known, (2, min(num_ids, self.max_length or num_ids)), self.device)
        ids[:, ids.shape[1] // 2] = min(
            max(0, getattr(self.config, "pad_token_id", None) or 0),
            known - 1,
        )
        return ids

    def _enough_ids(self, num_ids: int, chunk: int = 0) -> int:
        """How many ids show what becomes of `num_ids`: as many or more, unless fewer are past all
        windows and two chunks.

        A power of two, so that few lengths are tried, and the same for every run. Many more than of
        a short text: what is rare, such as two ids that are equally good to select, comes in one of
        many short texts, too.
        """
        if num_ids <= probes.PROBED_IDS:
            return probes.PROBED_IDS
        windows = [size for size in self._windows() if size < num_ids]
        most = max(_MOST_PROBED, 4 * max(windows, default=0), 2 * chunk + probes.PROBED_IDS)
        return min(max(_LEAST_PROBED, 1 << (num_ids - 1).bit_length()), most)

    @contextlib.contextmanager
    def _probing(self) -> Iterator[None]:
        """A context without gradients, and in float32: in half precision, rounding would hide what
        a probe looks for."""
        if not self.is_half:
            with torch.no_grad():
                yield
        else:
            with torch.inference_mode(), widened(torch.float32):
                yield

    def _nlls(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """NLLs of targets (b, t) under outputs (b, t, ...), in nats; of ids that the model rules
        out a large number."""
        nll = self.reduce(outputs.flatten(0, 1), targets.flatten()).nll
        return nll.clamp(max=_RULED_OUT).view_as(targets)

    def _agree(self, differences: Callable[..., Tensor], num_ids: int, *setting: Any) -> bool:
        """Whether two ways of reading so many ids have the same NLLs: `differences` gives the
        absolute ones.

        More than rounding in float32 is decided in float64, where that runs: there no rounding
        chooses another expert, or another id to attend to. Of few ids less is needed, since the
        part of a state that is ignored can be small (zamba).
        """
        key = differences.__name__, num_ids, *setting
        if key not in self._agreed:
            self._agreed[key] = False
            most = MOST_READING if num_ids > probes.PROBED_IDS else MOST_READING / 10
            with contextlib.suppress(UserError):
                with self._probing():
                    nats = differences(num_ids, *setting)
                self._agreed[key] = bool(nats.max() <= MOST_READING)
                if nats.max() > most and nats.mean() < _NOT_ROUNDING:
                    with torch.inference_mode(), widened():
                        nats = differences(num_ids, *setting)
                    self._agreed[key] = bool(nats.max() <= most)
        return self._agreed[key]

    def sharing_over(self, lengths: np.ndarray) -> Sharing:
        """See `TorchModel.sharing_over`: tried at such lengths before sequences of different ones
        share a batch."""
        longest = len(self.prefix) + int(lengths.max(initial=0)) - 1
        is_short = longest <= probes.PROBED_IDS
        if self.sharing != "any" or is_short or len(set(lengths[lengths > 1])) == 1:
            return self.sharing
        return "any" if self._agree(self._padding, self._enough_ids(longest)) else "equal"

    def _padding(self, num_ids: int) -> Tensor:
        """How the NLLs of a sequence that is padded to `num_ids` in a batch differ from those of
        the same one alone."""
        ids = self._probed_ids(num_ids)
        length = ids.shape[1] * 2 // 3
        ids[1, length:] = ids[1, length - 1]
        targets = ids.roll(-1, 1)
        together = self._nlls(self.forward(ids)[0], targets)[1:, :length]
        alone = self._nlls(self.forward(ids[1:, :length])[0], targets[1:, :length])
        return (together - alone).abs()

    @property
    def can_join(self) -> bool:
        """See `TorchModel.can_join`."""
        return self.joins_after(probes.PROBED_IDS)

    def joins_after(self, num_ids: int) -> bool:
        """See `TorchModel.joins_after`."""
        if self._way_of_carrying is None:
            return False
        num_ids = self._enough_ids(num_ids)
        if num_ids not in self._joined:
            ids, self._way = self._probed_ids(num_ids), None
            with self._probing():
                alone = torch.cat([self.forward(row)[0] for row in ids[:, None]])
                read = functools.partial(self.forward, carry=True)
                self._joined[num_ids] = probes.can_join(
                    ids,
                    alone,
                    read,
                    self.logits,
                    self.join,
                    self.take,
                )
        return self._joined[num_ids]

    def join(self, states: Sequence[_Carried]) -> _Carried:
        """See `TorchModel.join`."""
        behind = [states[0].num_read - state.num_read for state in states]
        moved = []
        for state, by in zip(states, behind, strict=True):
            missing = state.missing + by
            moved.append(replace(state, missing=missing, is_ragged=any(behind)))
        joined: _Carried = super().join(moved)
        return joined

    def _logits(self, ids: Tensor) -> Tensor:
        return self.logits(self.forward(ids)[0])

    def logits(self, outputs: Tensor) -> Tensor:
        """See `TorchModel.logits`."""
        with self._exactly():
            if self.head is None:
                return wide(outputs)
            hidden, weight, bias = self._operands(outputs, self.head)
            return _head_logits(
                wide(hidden),
                wide(weight),
                None if bias is None else wide(bias),
                self.head.cap,
            )

    # --------------------------------------------------------------------------- carrying its state

    @functools.cached_property
    def _way_of_carrying(self) -> probes.Carrying | None:
        """How the state of a few ids is carried; None where it is not."""
        is_short = self._probed_ids().shape[1] < probes.PROBED_IDS
        if self._state_name is None or _depends_on_length(self.config) or is_short:
            return None
        takes_positions = "position_ids" in _parameters(self._reader)
        ways = [way for way in probes.WAYS if takes_positions or not way.positions]
        return self._way_over(probes.PROBED_IDS, 3, ways)

    def _way_over(
        self,
        num_ids: int,
        chunk: int,
        ways: Sequence[probes.Carrying],
    ) -> probes.Carrying | None:
        """The first way of carrying the state that gives the NLLs of one pass over so many ids;
        None if none does."""
        enough = self._enough_ids(num_ids, chunk)
        return next((way for way in ways if self._agree(self._carrying, enough, chunk, way)), None)

    def _carrying(self, num_ids: int, chunk: int, way: probes.Carrying) -> Tensor:
        """How NLLs in pieces differ from those of one pass, up to where that is clearly no
        rounding.

        Some models mix up the rows of a batch where a single id follows, so two rows are read.
        """
        ids, state, start = self._probed_ids(num_ids), None, 0
        targets = ids.roll(-1, 1)
        differences = self._nlls(self.forward(ids)[0], targets)
        for size in _pieces(way, ids.shape[1], chunk):
            part = slice(None), slice(start, start + size)
            outputs, state = self._read_on(ids[part], state, way)
            differences[part] = (differences[part] - self._nlls(outputs, targets[part])).abs()
            start += size
            if differences[:, :start].sum() > _NOT_ROUNDING * ids.numel():
                break
        return differences[:, :start]

    @property
    def _state_name(self) -> str | None:
        """The parameter that takes the state; None where there is none."""
        known = _parameters(self._reader)
        # A wrapper passes on what it does not name.
        return next(
            (name for name in _STATES if name in known),
            _STATES[0] if "kwargs" in known else None,
        )

    def _read_on(
        self,
        inputs: Tensor,
        state: _Carried | None,
        way: probes.Carrying | None,
    ) -> tuple[Tensor, _Carried]:
        """Outputs of `inputs` (b, t) that follow `state`, and the state after them."""
        if state is None:
            state = _Carried(
                self._first_cache(),
                0,
                torch.zeros(len(inputs), dtype=torch.int64, device=inputs.device),
            )
        name, num_read = str(self._state_name), state.num_read + inputs.shape[1]
        places = torch.arange(num_read, device=inputs.device)[None]
        more: dict[str, Any] = {"use_cache": True}
        if way is not None and way.positions and "position_ids" in _parameters(self._reader):
            missing = state.missing[:, None] if state.is_ragged else 0
            more["position_ids"] = places[:, state.num_read :] - missing
        if state.is_ragged and self._layout.grows and "attention_mask" in _parameters(self._reader):
            more["attention_mask"] = (places >= state.missing[:, None]).long()
        if state.cache is not None:
            more[name] = state.cache
            for (module, attribute), value in zip(
                self._keepers,
                state.stored,
                strict=bool(state.stored),
            ):
                setattr(module, attribute, value)
        output = self._run(self._reader, inputs, **more)
        cache = getattr(output, name, None)
        if cache is None and state.cache is None:
            # The model does not return its cache: we pass one, which it writes to.
            cache = more[name] = self._fresh_cache()
            output = self._run(self._reader, inputs, **more)
        stored = tuple(getattr(module, attribute) for module, attribute in self._keepers)
        return self._outputs(output), replace(
            state,
            cache=state.cache if cache is None else cache,
            num_read=num_read,
            stored=stored,
        )

    def initial(self, num_rows: int) -> Any:
        """See `TorchModel.initial`: the cache of a variant."""
        cache, self._user_cache = self._user_cache, None
        if cache is None and self._state_name == "past_key_values":
            from recallkit.models.kept_cache import kept_cache

            cache = kept_cache(self.config)
        if cache is None:
            return None
        missing = torch.zeros(num_rows, dtype=torch.int64, device=self.device)
        return _Carried(cache, 0, missing)

    def by_layer(self, state: Any) -> Sequence[Any] | None:
        """See `TorchModel.by_layer`: those of a cache, unless layers share theirs or have some of
        it elsewhere."""
        is_divided = not (getattr(self.config, "num_kv_shared_layers", None) or self._keepers)
        return getattr(state.cache, "layers", None) if is_divided else None

    def compress(self, state: Any, compression: Compression) -> Any:
        """See `TorchModel.compress`, in place."""
        from recallkit.models.kept_cache import compress_cache

        compress_cache(state.cache, compression)
        return state

    @contextlib.contextmanager
    def reading(self) -> Iterator[None]:
        """See `TorchModel.reading`. Raises UserError where a user's function makes neither a cache
        nor a context manager."""
        compression = self.compression
        if compression is None or compression.make_cache is None or compression.exact:
            yield
            return
        from transformers import Cache

        product, where = compression.make_cache(), compression.shown
        if isinstance(product, Cache):
            self._user_cache = product
            yield
        elif hasattr(product, "__enter__"):
            with product:
                yield
        else:
            problem = f"its function returned an object of {type(product).__name__}"
            raise UserError(
                problem,
                where=where,
                remedy="return a Cache of transformers, or a context manager in which text is read",
            )

    _user_cache: Any = None
    """A user's cache that the next state begins with."""

    @functools.cached_property
    def _keepers(self) -> list[tuple[torch.nn.Module, str]]:
        """Modules and names of their tensors that grow with the rows: states outside any cache
        (recurrent_gemma)."""

        def shapes(num_rows: int) -> dict[tuple[torch.nn.Module, str], torch.Size]:
            ids = torch.zeros(num_rows, 2, dtype=torch.int64, device=self.device)
            self._run(
                self._reader,
                ids,
                use_cache=True,
                **{str(self._state_name): self._first_cache()},
            )
            sizes = {}
            for module in self.model.modules():
                for name, value in vars(module).items():
                    if isinstance(value, torch.Tensor):
                        sizes[module, name] = value.shape
            return sizes

        one, two = shapes(1), shapes(2)
        return [place for place in one if place in two and one[place] != two[place]]

    def _first_cache(self) -> Any:
        """The cache of a first pass where the model's own raises errors: that of recurrent layers
        alone; else None."""
        from recallkit.models.kept_cache import recurrent_cache

        with self._forward_errors():
            return recurrent_cache(self.config) if self._state_name == "past_key_values" else None

    def _fresh_cache(self) -> Any:
        from transformers import DynamicCache

        with self._forward_errors():
            return DynamicCache(config=self.config)


def _head_logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, cap: float | None) -> Tensor:
    """Logits (..., vocab) of hidden states (..., d), computed for a few rows at a time."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits if cap is None else logits.div_(cap).tanh_().mul_(cap)


def _pieces(way: probes.Carrying, num_inputs: int, size: int) -> list[int]:
    """The lengths in which more inputs than `size` are read: the first has two ids at least, single
    ids follow in steps alone.

    Some models treat a single id as a step from whatever they read last: 9 ids by 4 are 4 and 5.
    """
    if way.pieces == "steps":
        return [size] + [1] * (num_inputs - size)
    sizes = [size] * (num_inputs // size)
    rest = num_inputs % size
    return [*sizes, rest] if rest > 1 else [*sizes[:-1], size + rest]


def _parameters(module: Any) -> frozenset[str]:
    """Names of the arguments of a module's forward."""
    return _parameter_names(type(module).forward)


@functools.cache
def _parameter_names(function: Any) -> frozenset[str]:
    return frozenset(inspect.signature(function).parameters)


def text_model(model: Any, name: str) -> Any:
    """The model of text: a model itself, or the one that it wraps. Raises UserError where neither
    has embeddings and a head."""
    for part in (model, getattr(model, "language_model", None)):
        if part is None or part.get_input_embeddings() is None:
            continue
        if part.get_output_embeddings() is not None:
            return part
    raise UserError(
        "not a language model with input and output embeddings",
        where=name,
        remedy="give one with a head",
    )


def context_length(config: Any, backbone: Any) -> int | None:
    """Longest context that a model accepts; None where there is no limit.

    A model whose only state is of fixed size has none, whatever length it was trained at.
    """
    taken = _parameters(backbone)
    if taken & {"state", "cache_params"} and not taken & {"past_key_values", "position_ids"}:
        return None
    limits = (getattr(config, name, None) for name in ("max_position_embeddings", "max_seq_len"))
    return next((limit for limit in limits if isinstance(limit, int) and limit > 0), None)


def _depends_on_length(config: Any) -> bool:
    """Whether a sequence's length changes the outputs of its first tokens: rotary positions that
    are rescaled beyond a length."""
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [rope, *(entry for entry in rope.values() if isinstance(entry, dict))]
    return any(kind.get("rope_type") in ("dynamic", "longrope") for kind in kinds)
