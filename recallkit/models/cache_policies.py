"""What is kept of a cache between chunks: policies that quantise the keys and values of one layer,
or evict some of them.

They are pure functions of keys and values, the same for our attention and for the layers of
transformers. A policy is applied after each chunk to what it kept before and the exact entries of
the chunk behind that, so whatever it rounded is rounded again.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from recallkit import registry
from recallkit.config import check_installed
from recallkit.errors import UsageError, UserError
from recallkit.models.compression import (
    Compressed,
    keep_all,
    row_bytes,
    scaled,
    stored_bytes,
    unscaled,
)
from recallkit.quiet_transformers import first_line, without_logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.compression import CachePolicy

GROUP, RESIDUAL = 64, 128
"""Entries of a group and ids that stay exact, by default, as in transformers' `QuantizedCache`."""


def keep_window(sinks: int, recent: int, keys: Tensor, values: Tensor, num_read: int) -> Compressed:
    """The first ids and the latest: StreamingLLM (arXiv 2309.17453, section 3.2).

    Positions stay those of the text; the paper's are those of the cache, which matters where a text
    is longer than a model's context.
    """
    if keys.shape[2] > sinks + recent:
        keys, values = (torch.cat([t[:, :, :sinks], t[:, :, -recent:]], 2) for t in (keys, values))
    return keep_all(keys, values, num_read)


def keep_best(
    score: Callable[[Tensor], Tensor],
    ratio: float,
    keys: Tensor,
    values: Tensor,
    num_read: int,
) -> Compressed:
    """The entries of each head with the largest scores, in their order: of `num_read` ids int(seen
    * (1
    - ratio)), at least one.

    `score`: keys (b, h, K, d) -> (b, h, K). What was evicted never returns, so scores are compared
    among what is still there.
    """
    count = max(1, int(num_read * (1 - ratio)))
    if count < keys.shape[2]:
        places = score(keys.float()).topk(count).indices.sort().values.unsqueeze(-1)
        keys, values = (t.gather(2, places.expand(-1, -1, -1, t.shape[-1])) for t in (keys, values))
    return keep_all(keys, values, num_read)


def lowest_norm(keys: Tensor) -> Tensor:
    """Scores of Devoto et al. (arXiv 2406.11430): keys of the smallest L2 norm get the most
    attention."""
    scores: Tensor = -keys.norm(dim=-1)
    return scores


def least_similar(keys: Tensor) -> Tensor:
    """Scores of KeyDiff (arXiv 2504.15364): minus the cosine similarity to the mean of the
    normalised keys."""
    anchor = functional.normalize(keys, dim=-1).mean(2, keepdim=True)
    return -functional.cosine_similarity(keys, anchor, dim=-1)


def keep_in_fp8(keys: Tensor, values: Tensor, num_read: int) -> Compressed:
    """All in e4m3 with one scale for the keys and one for the values of a sequence, its largest
    magnitude at 448.

    As transformers' `Fp8QuantizedLayer`, but each row has its own scale, measured again after each
    chunk; theirs is that of the first chunk of the whole batch, beyond which magnitudes saturate or
    become NaN.
    """
    stored = [scaled(tensor, (1, 2, 3), torch.float8_e4m3fn) for tensor in (keys, values)]
    num_bytes = row_bytes(*stored[0], *stored[1])
    return Compressed(
        unscaled(*stored[0], keys.dtype),
        unscaled(*stored[1], values.dtype),
        num_bytes,
    )


@dataclass(frozen=True, slots=True)
class Quantised:
    """The latest `residual` ids exact, older ones in groups of `group` consecutive entries of a
    head's vector of one id.

    A head that is narrower than the default group is one group.
    """

    bits: int
    group: int | None = None
    residual: int = RESIDUAL
    backend: str = "affine"

    def __call__(self, keys: Tensor, values: Tensor, num_read: int) -> Compressed:
        """A `CachePolicy`."""
        (keys, key_bytes), (values, value_bytes) = map(self._rounded, (keys, values))
        return Compressed(keys, values, key_bytes + value_bytes)

    def _rounded(self, tensor: Tensor) -> tuple[Tensor, int]:
        """A tensor as later chunks see it, and bytes of one row. Rows are rounded one by one: HQQ
        fits a whole tensor at once."""
        num_old = max(0, tensor.shape[2] - self.residual)
        old, recent = tensor[:, :, :num_old], tensor[:, :, num_old:]
        num_bytes = row_bytes(recent)
        if not num_old:
            return tensor, num_bytes
        width = tensor.shape[-1]
        group = self.group or min(GROUP, width)
        if width % group:
            problem = f"groups of {group} entries do not divide a head's width of {width}"
            raise UserError(problem, remedy=f"give int{self.bits}:group={width & -width}")
        rows, sizes = zip(
            *(_BACKENDS[self.backend](row, self.bits, group) for row in torch.split(old, 1)),
            strict=True,
        )
        return torch.cat([torch.cat(rows), recent], 2), num_bytes + sizes[0]


def _affine(tensor: Tensor, bits: int, group: int) -> tuple[Tensor, int]:
    """Rounded to scale * code + minimum with scale = (maximum - minimum) / (2^bits - 1) of each
    group, and the bytes stored.

    Asymmetric round-to-nearest as in KIVI (arXiv 2402.02750) and quanto's `MaxOptimizer`, whose
    figures it has to the bit.
    """
    most = 2**bits - 1
    groups = tensor.reshape(-1, group)
    low, high = torch.aminmax(groups, dim=1, keepdim=True)
    scale = (high - low) / most
    scale = torch.where(scale == 0, 1, scale)  # a group of equal entries
    codes = ((groups - low) / scale).round().clamp(0, most)
    packed = -(-codes.numel() * bits // 8)  # bytes of the codes, one behind the other
    return (scale * codes + low).view(tensor.shape), packed + stored_bytes(scale) + stored_bytes(
        low,
    )


def _quanto(tensor: Tensor, bits: int, group: int) -> tuple[Tensor, int]:
    """As `_affine`, by optimum-quanto through transformers."""
    layer = _layer("QuantoQuantizedLayer", bits, group)
    stored = layer._quantize(tensor.contiguous(), axis=0)
    try:
        rounded: Tensor = layer._dequantize(stored)
    except (RuntimeError, OSError) as error:  # it compiles C++ when it first unpacks codes on a CPU
        if tensor.is_cuda:
            raise
        problem = f"optimum-quanto cannot build its C++ extension ({first_line(error)})"
        raise UserError(
            problem,
            remedy="have ninja and a C++ compiler on the PATH, or leave quanto out",
        ) from error
    return rounded, stored_bytes(stored)


def _hqq(tensor: Tensor, bits: int, group: int) -> tuple[Tensor, int]:
    """By HQQ through transformers; along axis 1, as its authors advise, where a group is entries of
    one vector."""
    groups = tensor.reshape(-1, group)
    # HQQ's packing drops codes of an odd number of groups.
    padded = functional.pad(groups, (0, 0, 0, -len(groups) % 4))
    layer = _layer("HQQQuantizedLayer", bits, group)
    layer.keys = padded  # where the layer looks for device and precision
    codes, meta = layer._quantize(padded, axis=1)
    rounded: Tensor = layer._dequantize((codes, meta))[: len(groups)]
    return rounded.reshape(tensor.shape), sum(
        map(stored_bytes, (codes, meta["scale"], meta["zero"])),
    )


@functools.cache
def _layer(name: str, bits: int, group: int) -> Any:
    with without_logs():
        from transformers import cache_utils

        return getattr(cache_utils, name)(nbits=bits, q_group_size=group)


_BACKENDS: dict[str, Callable[[Tensor, int, int], tuple[Tensor, int]]] = {
    "affine": _affine,
    "quanto": _quanto,
    "hqq": _hqq,
}
PACKAGES = {"quanto": ("optimum-quanto", "cache"), "hqq": ("hqq", "hqq")}
"""The distribution that a backend needs, and the extra of ours that installs it."""


def parse_cache(text: str) -> CachePolicy:
    """The policy that `NAME:OPTION:OPTION ...` means, by a name of `CACHES`. Raises UsageError for
    anything else."""
    name, *options = text.split(":")
    try:
        example, make = registry.look_up(CACHES, name, "cache policy")
        return make(*options)
    except UserError as error:
        raise UsageError(error.problem, where=f"cache={text}", remedy=error.remedy) from None
    except (TypeError, ValueError) as error:
        problem = str(error) if isinstance(error, ValueError) else f"{name} takes no such options"
        raise UsageError(problem, where=f"cache={text}", remedy=f"write {example}") from None


def _quantising(bits: int, *options: str) -> CachePolicy:
    values: dict[str, Any] = {}
    for option in options:
        key, _, value = option.partition("=")
        if option in _BACKENDS:
            values["backend"] = option
        elif key in ("group", "residual") and value.isdecimal() and int(value) >= (key == "group"):
            values[key] = int(value)
        else:
            raise ValueError(
                f"{option} is neither group=N nor residual=N, nor one of {', '.join(_BACKENDS)}",
            )
    backend = values.get("backend", "affine")
    if backend == "quanto" and bits == 8:
        raise ValueError("quanto has 2 and 4 bits")
    if backend in PACKAGES:
        check_installed(*PACKAGES[backend], otherwise=f", or leave {backend} out")
    return Quantised(bits, **values)


def _window(counts: str) -> CachePolicy:
    sinks, plus, recent = counts.partition("+")
    if not (plus and sinks.isdecimal() and recent.isdecimal() and int(recent)):
        counts = "a number of first ids, a plus sign, and a number of latest ids of at least 1"
        raise ValueError(f"a window is {counts}")
    return functools.partial(keep_window, int(sinks), int(recent))


def _evicting(score: Callable[[Tensor], Tensor], ratio: str) -> CachePolicy:
    try:
        share = float(ratio)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise ValueError(f"{ratio or 'nothing'} is not a share of ids to evict, between 0 and 1")
    return functools.partial(keep_best, score, share)


CACHES: dict[str, tuple[str, Callable[..., CachePolicy]]] = {
    "full": ("full", lambda: keep_all),
    "int8": ("int8 or int8:group=64:residual=128", functools.partial(_quantising, 8)),
    "int4": ("int4 or int4:group=64:residual=128:quanto", functools.partial(_quantising, 4)),
    "int2": ("int2 or int2:group=64:residual=128:quanto", functools.partial(_quantising, 2)),
    "fp8": ("fp8", lambda: keep_in_fp8),
    "window": ("window:4+256", _window),
    "knorm": ("knorm:0.5", functools.partial(_evicting, lowest_norm)),
    "keydiff": ("keydiff:0.5", functools.partial(_evicting, least_similar)),
}
"""Name -> an example, and what makes the policy of the options behind the name, each a string. A
policy is a line here."""
