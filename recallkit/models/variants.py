"""Variants of a model: the same weights with a compressed cache, a rounded state or fewer bits,
read in chunks.

Each chunk of ids sees the compressed past and itself exactly, then the past is compressed again, as
a server compresses what it keeps. What is kept of a layer's keys and values: `cache_policies`; how
a state is rounded: `compression`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UsageError, UserError
from recallkit.models.user import identify_function, is_user_function, open_function
from recallkit.quiet_transformers import without_logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.user import UserCode

CHUNK = 64
"""Ids that are read between two compressions where a variant does not say."""

STATES, WEIGHTS = ("bf16", "fp16", "fp8", "int8"), ("int8", "int4")
_TORCHAO = "torchao", "weights"
"""What quantises weights, and the extra of ours that installs it."""


@dataclass(frozen=True, slots=True)
class Variant:
    """What differs from a model as its files are, as its options say it; all None: nothing.

    `cache`: as `cache_policies.parse_cache` reads it, or FILE.py:FUNCTION, a function of the
    transformers model that returns a Cache of transformers or a context manager in which text is
    read. `state`: one of STATES, how recurrent states are rounded. `weights`: one of WEIGHTS.
    `chunk`: ids between two compressions. `protocol`: `once:K`, the first K ids of a sequence are
    compressed once; what follows stays exact. Raises UsageError for anything else.
    """

    cache: str | None = None
    state: str | None = None
    weights: str | None = None
    chunk: int | None = None
    protocol: str | None = None

    def __post_init__(self) -> None:
        """Checks what is given."""
        if self.cache is not None and not is_user_function(self.cache):
            from recallkit.models.cache_policies import parse_cache

            parse_cache(self.cache)
        for name, known in (("state", STATES), ("weights", WEIGHTS)):
            value = getattr(self, name)
            if value is not None and value not in known:
                raise UsageError(
                    f"{name}={value} is not one of {', '.join(known)}",
                    remedy="choose one",
                )
        for name, value, least in (("chunk", self.chunk, 1), ("once", self.once, 2)):
            if value is not None and not (type(value) is int and least <= value <= config.LONGEST):
                raise UsageError(
                    f"{name} is {value}, not a number of ids",
                    remedy="give one such as 64",
                )
        if self.chunk is not None and self.once is not None:
            raise UsageError(
                "chunk and protocol=once",
                remedy="give one: what follows the first ids is read at once",
            )
        if (self.chunk or self.once) and not self.reads_in_chunks:
            raise UsageError(
                "nothing to compress between chunks",
                remedy="give cache= or state= as well; cache=full compresses nothing",
            )

    @property
    def once(self) -> int | None:
        """The first ids of a sequence, compressed once; None where text is read in chunks. Raises
        UsageError for anything else."""
        if self.protocol is None:
            return None
        kind, _, number = self.protocol.partition(":")
        if kind != "once" or not number.isdecimal():
            problem = f"protocol={self.protocol} is not one"
            raise UsageError(
                problem,
                remedy="give once:K, the ids that are compressed once, such as once:1024",
            )
        return int(number)

    @property
    def reads_in_chunks(self) -> bool:
        """Whether text is read in chunks, with the state compressed between them."""
        return self.cache is not None or self.state is not None

    def identify(self) -> list[Any]:
        """What decides what it does: its file's code and FILES, versions of packages. Raises
        UserError where one of these is missing."""
        decisive: list[Any] = [self.typed(), CHUNK]
        if self.weights is not None:
            decisive.append(config.check_installed(*_TORCHAO))
        if self.cache is None:
            return decisive
        if is_user_function(self.cache):
            return [*decisive, identify_function(self.cache)]
        from recallkit.models.cache_policies import PACKAGES

        names = [name for name in self.cache.split(":") if name in PACKAGES]
        return [
            *decisive,
            *(config.check_installed(*PACKAGES[name]) for name in names),
        ]

    def _options(self) -> dict[str, Any]:
        options = {name: getattr(self, name) for name in VARIANT_OPTIONS}
        return {name: value for name, value in options.items() if value is not None}

    def __str__(self) -> str:
        """What names in results end in: `cache int4, chunk 16`."""
        return ", ".join(f"{name} {value}" for name, value in self._options().items())

    def typed(self) -> str:
        """As it is typed after a model: `,cache=int4,chunk=16`."""
        return "".join(f",{name}={value}" for name, value in self._options().items())


VARIANT_OPTIONS = tuple(field.name for field in fields(Variant))


def apply_variant(model: ScoringModel, variant: Variant) -> None:
    """Makes a loaded model read as a variant of itself, for good.

    Raises UserError for a model without such a cache or state, for one whose state cannot be
    carried, and where reading in chunks alone, with nothing compressed, changes its scores.
    """
    from torch import nn

    module, compress_with = getattr(model, "model", None), getattr(model, "compress_with", None)
    if compress_with is None or not isinstance(module, nn.Module):
        remedy = "models of transformers and those on our own mixers have variants"
        raise UserError(
            f"it has no cache, state or weights that can be changed here ({variant})",
            where=model.name,
            remedy=remedy,
        )
    make_cache = None
    if variant.cache is not None and is_user_function(variant.cache):
        if not hasattr(module, "config_class"):
            remedy = "name a policy such as cache=int4, or a model of transformers"
            raise UserError(
                f"it has no transformers cache, which {variant.cache} needs",
                where=model.name,
                remedy=remedy,
            )
        make_cache = functools.partial(_call, *open_function(variant.cache), variant.cache, module)
    if variant.weights is not None:
        quantise_weights(module, variant.weights)
    if variant.reads_in_chunks:
        from recallkit.models.cache_policies import parse_cache
        from recallkit.models.compression import Compression

        has_policy = variant.cache is not None and make_cache is None
        policy = parse_cache(str(variant.cache)) if has_policy else None
        chunk = variant.once or variant.chunk or CHUNK
        try:
            compress_with(
                Compression(policy, variant.state, chunk, variant.once, str(variant), make_cache),
            )
        except UserError as error:
            if error.where is not None:
                raise
            # An error of a policy, which knows no model.
            raise UserError(error.problem, where=model.name, remedy=error.remedy) from error


def _call(code: UserCode, function: Callable[[Any], Any], spec: str, module: nn.Module) -> Any:
    with code.running(spec):
        return function(module)


WEIGHT_GROUP = 128
"""Most weights of a row that share a scale in int4."""


def quantise_weights(module: nn.Module, kind: str) -> None:
    """Replaces weights in place by what weight-only quantisation to int8 or int4 makes of them.

    Those of every nn.Linear but the output head and what is tied to an embedding, which GPTQ and
    AWQ leave alone, too. By torchao's `IntxWeightOnlyConfig`, which works on any machine
    (optimum-quanto has had no release since 2025). Symmetric: int8 with a scale per output, int4
    with one per group of 128 inputs, or of the largest power of two that divides their number. The
    weights are dequantised to their own precision, so that any code reads them, as weight-only
    kernels do within each product. Raises UserError without torchao, or such a layer, and for a
    mixture of experts whose weights are no nn.Linear.
    """
    import torch
    from torch import nn

    config.check_installed(*_TORCHAO)
    with without_logs():
        from torchao.quantization import IntxWeightOnlyConfig, PerAxis, PerGroup, quantize_

    layers = _inner_linears(module)
    if not layers:
        raise UserError(
            "no nn.Linear besides the output head, so no weights can be quantised",
            remedy=f"leave out weights={kind}",
        )
    stacks = (item for item in module.named_parameters() if item[1].ndim == 3)
    experts = (name for name, weight in stacks if min(weight.shape) > 1)
    if (stacked := next(experts, None)) is not None:
        raise UserError(
            f"weight {stacked} is of no nn.Linear, and would stay as it is",
            remedy=f"leave out weights={kind}",
        )
    for layer in layers:
        width = layer.in_features
        granularity = PerAxis(0) if kind == "int8" else PerGroup(min(WEIGHT_GROUP, width & -width))
        quantize_(
            layer,
            IntxWeightOnlyConfig(getattr(torch, kind), granularity),
            filter_fn=lambda *_: True,
        )
        stored: Any = layer.weight
        layer.weight = nn.Parameter(stored.dequantize(), requires_grad=False)


def _inner_linears(module: nn.Module) -> list[nn.Linear]:
    """The linear layers of a model without its output head: what transformers names so, else an
    attribute `head` or `lm_head`."""
    from torch import nn

    head = getattr(module, "get_output_embeddings", lambda: None)()
    head = head or getattr(module, "head", None) or getattr(module, "lm_head", None)
    left = {id(part.weight) for part in module.modules() if isinstance(part, nn.Embedding)} | {
        id(getattr(head, "weight", None)),
    }
    layers = [part for part in module.modules() if isinstance(part, nn.Linear)]
    return [layer for layer in layers if id(layer.weight) not in left]
