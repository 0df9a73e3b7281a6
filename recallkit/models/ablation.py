"""Ablated models: the mixers of a loaded model are found, and their outputs replaced by zero or by
their mean over a text.

A mixer is what moves something from one token to another: attention, a convolution, a recurrence.
Only its output is replaced: the residual stream, the MLPs and every state stay, so that an ablated
model is scored, carried and continued as the model itself.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from recallkit.errors import UsageError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy as np
    from torch import Tensor, nn

    from recallkit.models.protocol import ScoringModel

    Change = Callable[[Tensor], Tensor]
    """Another output (..., d) in place of a mixer's."""

By = Literal["zero", "mean"]
"""What replaces an output: zero, or the mean of the mixer's outputs over the tokens of a text."""

NONE = "none"
"""An ablation of no mixer: the model as it is."""

_NAMED = re.compile(r"(0|[1-9]\d{0,5})(\.[a-z][a-z0-9_]*)?(\.h\d{1,5}(-\d{1,5})?)?|[a-z][a-z0-9_]*")
_HEADS = re.compile(r"(.+)\.h(\d+)(?:-(\d+))?")
_EXAMPLES = "ablate=1+3, ablate=attention, ablate=2.h0-3 or ablate=1:mean"
SYNTAX = f"layers, heads or kinds joined with +, such as {_EXAMPLES}"


@dataclass(frozen=True, slots=True)
class Ablation:
    """Which mixers are replaced, by what. `names`: layers (`3`), kinds (`attention`), one of
    several in a layer (`3.attention`), heads.

    Heads are those from the first to the last of one mixer, counted from 0: `3.h5`, `3.h4-7`,
    `3.attention.h0`. They are replaced by zero.
    """

    names: tuple[str, ...]
    by: By = "zero"

    @classmethod
    def parse(cls, text: str) -> Ablation:
        """The ablation that `1+3`, `attention`, `3.mamba:mean` or `none` means, in one order.
        Raises UsageError for anything else."""
        names, _, by = text.partition(":")
        names_ = names.split("+")
        wrong = (NONE in names_ and len(names_) > 1) or (by or "zero") not in get_args(By)
        wrong |= by == "mean" and any(map(heads_of, names_))
        if wrong or not all(map(_NAMED.fullmatch, names_)):
            raise UsageError("no mixers", where=f"ablate={text}", remedy=f"give {SYNTAX}")
        return cls(
            tuple(sorted(dict.fromkeys(names_), key=_in_order)),
            "mean" if by == "mean" else "zero",
        )

    def __str__(self) -> str:
        """As it is typed."""
        return "+".join(self.names) + (":mean" if self.by == "mean" else "")

    @property
    def needs_means(self) -> bool:
        """Whether it needs the means of the mixers' outputs."""
        return self.by == "mean" and self.names != (NONE,)

    @property
    def shown(self) -> str:
        """What the names of ablated models end in."""
        return f"{'with the mean of' if self.by == 'mean' else 'without'} {'+'.join(self.names)}"


def heads_of(name: str) -> tuple[str, int, int] | None:
    """The mixer, the first and the last head that a name means; None of whole mixers."""
    match = _HEADS.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), int(match[3] or match[2]))


def _in_order(name: str) -> tuple[bool, int, str]:
    layer = name.partition(".")[0]
    return (not layer.isdecimal(), int(layer) if layer.isdecimal() else 0, name)


# -------------------------------------------------------------------------------- replacing outputs


@dataclass(frozen=True, slots=True)
class PlacedMixer:
    """A mixer of a loaded model: the number of its layer from 0 on, its kind, and its module."""

    layer: int
    kind: str
    name: str
    """`3`, or `3.attention` where layer 3 has several."""
    module: nn.Module | None
    """None where only its place matters."""
    block: Any = None
    """The block of a `LanguageModel` whose `mixer` it is; None where the module is only ever
    called."""
    num_heads: int | None = None
    """How many heads it has whose outputs one layer joins; None where there are none."""
    heads: tuple[int, int] | None = None
    """The first and the last of those that are meant; None of all of it."""
    cache_bytes: int | None = None
    """Bytes of its cache after a sequence of the text, see `TorchModel.cache_bytes`; None where
    they are not known."""

    @property
    def key(self) -> str:
        """A name that is unique whatever else is in the layer."""
        return f"{self.layer}.{self.kind}"

    def describe(self, *, heads: bool) -> str:
        """`3 (attention)`, with the number of its heads where that matters."""
        number = f", {self.num_heads} heads" if heads and self.num_heads else ""
        return f"{self.layer} ({self.kind}{number})"

    def part(self, name: str) -> PlacedMixer | None:
        """The mixer, or so many of its heads, if it is one of those that an ablation names so."""
        if heads := heads_of(name):
            mixer, first, last = heads
            known = mixer in (str(self.layer), self.key) and first <= last < (self.num_heads or 0)
            return replace(self, heads=(first, last)) if known else None
        return self if name in (str(self.layer), self.kind, self.key) else None

    def change(self, change: Change) -> Callable[[], None]:
        """Passes every output, or those of its `heads` before they are joined, through `change`
        from now on; returns what ends it."""
        assert self.module is not None, "a mixer of a loaded model"
        if self.heads is not None:
            joint, (first, last) = _joining(self.module), self.heads
            assert joint is not None, "a mixer with heads"
            joining, number = joint
            return joining.register_forward_pre_hook(
                lambda _, inputs: (_changed_heads(inputs[0], number, first, last, change),),
            ).remove
        if self.block is None:
            return self.module.register_forward_hook(
                lambda module, inputs, output: _changed(output, change),
            ).remove
        before, self.block.change = self.block.change, change
        return lambda: setattr(self.block, "change", before)


def _changed(output: Any, change: Change) -> Any:
    """The output of a module: a tensor, or a tuple that begins with one and goes on with weights or
    states."""
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def _changed_heads(joined: Tensor, number: int, first: int, last: int, change: Change) -> Tensor:
    """The outputs of all heads side by side (..., number * width), those from `first` to `last`
    changed."""
    width = joined.shape[-1] // number
    changed = joined.clone()
    changed[..., first * width : (last + 1) * width] = change(
        joined[..., first * width : (last + 1) * width],
    )
    return changed


def choose_mixers(
    mixers: Sequence[PlacedMixer],
    ablation: Ablation,
    where: str,
) -> list[PlacedMixer]:
    """Those of a model's mixers that an ablation names. Raises UserError, about the model `where`,
    for a name of none."""
    names, chosen = [name for name in ablation.names if name != NONE], []
    for name in names:
        parts = [part for mixer in mixers if (part := mixer.part(name)) is not None]
        if not parts:
            listed = ", ".join(mixer.describe(heads=".h" in name) for mixer in mixers)
            raise UserError(
                f"it has no mixer {name}",
                where=where,
                remedy=f"its mixers are {listed}",
            )
        chosen += parts
    return sorted(
        {(part.key, part.heads): part for part in chosen}.values(),
        key=lambda part: part.layer,
    )


def ablate(
    model: ScoringModel,
    ablation: Ablation,
    means: Mapping[str, np.ndarray] | None = None,
) -> None:
    """Replaces the outputs of the mixers that an ablation names, in a loaded model, for good.

    `means`: by `PlacedMixer.key`, float64 (d,), see `observe_means`. Raises UserError for a model
    without such mixers, and where means are needed and are not there.
    """
    chosen = choose_mixers(find_mixers(model), ablation, model.name)
    if ablation.needs_means and means is None:
        raise UserError(
            "a mean is one over a text",
            where=model.name,
            remedy=f"score it on slices, or by zero: ablate={'+'.join(ablation.names)}",
        )
    for mixer in chosen:
        mixer.change(
            _zero if ablation.by == "zero" or means is None else _constant(means[mixer.key]),
        )


def _zero(output: Tensor) -> Tensor:
    return output.new_zeros(output.shape)


def _constant(value: np.ndarray) -> Change:
    """The same vector (d,) at every place, in the precision of the output that it replaces."""
    import torch

    vector = torch.from_numpy(value)
    return lambda output: vector.to(output.device, output.dtype).expand(output.shape).contiguous()


@contextmanager
def observe_means(model: ScoringModel) -> Iterator[Callable[[], dict[str, np.ndarray]]]:
    """A block in which the outputs of all mixers are added up as the model reads; yields a function
    that gives their means.

    By `PlacedMixer.key`, float64 (d,), over every place that was read: rows are to be of equal
    length, so that none is padding.
    """
    import torch

    mixers = find_mixers(model)
    sums: dict[str, Tensor] = {}
    numbers: Counter[str] = Counter()

    def add(key: str) -> Change:
        def observed(output: Tensor) -> Tensor:
            rows = output.detach().flatten(0, -2)
            sums[key] = sums.get(key, 0) + rows.to(torch.float64).sum(0)
            numbers[key] += len(rows)
            return output

        return observed

    ends = [mixer.change(add(mixer.key)) for mixer in mixers]
    try:
        yield lambda: {key: (total / numbers[key]).cpu().numpy() for key, total in sums.items()}
    finally:
        for end in ends:
            end()


# ------------------------------------------------------------------------------------- finding them


def find_mixers(model: ScoringModel) -> list[PlacedMixer]:
    """The mixers of a loaded model, layer by layer. Raises UserError for a model that has none that
    can be found."""
    from torch import nn

    parts = [getattr(model, name, None) for name in ("model", "module")]
    module = next((part for part in parts if isinstance(part, nn.Module)), None)
    mixers = [] if module is None else _of_module(module)
    if not mixers:
        models = "models of transformers and of fla, and those on our own mixers"
        remedy = f"{models}, have mixers that can"
        raise UserError("no mixer of it can be replaced", where=model.name, remedy=remedy)
    numbers = Counter(layer for layer, *_ in mixers)
    several = {layer for layer, number in numbers.items() if number > 1}
    return [
        PlacedMixer(
            layer,
            kind,
            f"{layer}.{kind}" if layer in several else str(layer),
            mixer,
            block,
            (_joining(mixer) or (None, None))[1],
        )
        for layer, kind, mixer, block in mixers
    ]


def with_caches(mixers: Sequence[PlacedMixer], caches: Sequence[int]) -> list[PlacedMixer]:
    """The mixers with the bytes of their caches, from those of each layer: of several in a layer,
    attention has them."""
    sized = []
    for mixer in mixers:
        has_cache = mixer.name == str(mixer.layer) or _SOFTMAX.fullmatch(mixer.kind)
        sized.append(replace(mixer, cache_bytes=caches[mixer.layer] if has_cache else 0))
    return sized


_JOINING = ("o_proj", "out_proj", "dense", "c_proj", "output")
"""What mixers call the layer that joins the outputs of their heads."""

_NUMBERS = ("num_v_heads", "num_heads", "num_attention_heads", "n_heads")
"""What they call the number of their heads, of value heads first; attention of transformers leaves
it to its config."""


def _joining(mixer: nn.Module) -> tuple[nn.Module, int] | None:
    """The layer that joins the outputs of a mixer's heads, which lie side by side in its input, and
    their number; None without heads."""
    joining = next(
        (layer for name in _JOINING if (layer := getattr(mixer, name, None)) is not None),
        None,
    )
    weight = getattr(joining, "weight", None)
    if joining is None or weight is None or weight.ndim != 2:
        return None
    width = weight.shape[0] if type(joining).__name__ == "Conv1D" else weight.shape[1]
    # Of xLSTM's mixers the norm knows the number.
    owners = (mixer, getattr(mixer, "multihead_norm", None))
    numbers = [getattr(owner, name, None) for owner in owners for name in _NUMBERS]
    number = next((number for number in numbers if isinstance(number, int)), None)
    if number is None:
        widths = [getattr(mixer, name, None) for name in ("v_head_dim", "head_dim", "head_size")]
        head = next((size for size in widths if isinstance(size, int)), None)
        number = getattr(getattr(mixer, "config", None), "num_attention_heads", None)
        if number is None or head is None or number * head != width:
            return None
    # A single channel is no head.
    return (joining, number) if number and width % number == 0 and width > number else None


def _of_module(module: nn.Module) -> list[tuple[int, str, nn.Module, Any]]:
    """(layer, kind, mixer, block) of each mixer of a module."""
    from recallkit.models.language_model import LanguageModel

    if isinstance(module, LanguageModel):
        kinds = [layer.mixer for layer in module.config.layers]
        blocks = enumerate(module.blocks)
        return [(place, kinds[place], block.mixer, block) for place, block in blocks]
    types = _layer_types(module)
    return [
        (place, _kind_of(name, mixer, types[place] if place < len(types) else ""), mixer, None)
        for place, layer in enumerate(_layers(module))
        for name, mixer in _mixers_in(layer)
    ]


_ATTRIBUTES = (
    *(
        "self_attn",
        "self_attention",
        "attn",
        "attention",
        "linear_attn",
        "mamba",
        "mixer",
        "conv",
        "short_conv",
    ),
    *("temporal_block", "mlstm_layer"),
)
"""What decoder layers of transformers and fla call their mixers."""

_NO_MIXER = re.compile(r"(MLP|MoE)$")
"""Classes of Nemotron-H, which calls whatever a layer is its mixer."""

_KINDS = (
    ("mamba", r"Mamba|^FalconH1Mixer$|^BambaMixer$"),
    ("gated_delta_net", r"GatedDelta"),
    ("delta_attention", r"Delta"),
    ("lightning_attention", r"Lightning"),
    ("short_conv", r"ShortConv"),
    ("recurrence", r"RecurrentBlock"),
    ("rwkv", r"(?i)rwkv"),
    ("mlstm", r"xLSTM"),
    ("linear_attention", r"(?<!^Kimi)LinearAttention"),
    ("attention", r"Attention|Attn"),
)
"""Kinds of transformers' mixers, by the first of these that is in their class's name; else the kind
is that name."""

_SOFTMAX = re.compile(
    r"((sliding|chunked|indexed|local|compressed_sparse|heavily_compressed)_)?attention",
)
"""Entries of `layer_types` that distinguish attention from attention; others say less than a
class."""


def _layer_types(module: Any) -> list[str]:
    config: Any = getattr(module, "config", None)
    config = config.get_text_config() if hasattr(config, "get_text_config") else config
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    return [str(entry) for entry in types] if isinstance(types, list | tuple) else []


def _layers(module: nn.Module) -> list[nn.Module]:
    """The decoder layers: the list of modules with the most layers that have mixers, those that
    read images left out."""
    from torch import nn

    decoder: Any = getattr(module, "get_decoder", None)
    module = module if decoder is None else decoder()
    lists = [list(part) for part in module.modules() if isinstance(part, nn.ModuleList)]
    return max(
        lists,
        key=lambda layers: sum(bool(_mixers_in(layer)) for layer in layers),
        default=[],
    )


def _mixers_in(layer: nn.Module) -> list[tuple[str, nn.Module]]:
    """The mixers of a layer with the names of their attributes, wherever in it, those within
    another mixer left out."""
    mixers, waiting = [], deque([layer])
    while waiting:
        for name, child in waiting.popleft().named_children():
            if name not in _ATTRIBUTES:
                waiting.append(child)
            elif not _NO_MIXER.search(type(child).__name__) and not _adds_its_input(child):
                mixers.append((name, child))
    return mixers


def _adds_its_input(module: nn.Module) -> bool:
    """Whether it ends in a normalised sum with its input, as in BERT and its kin: replaced, it
    would cut the residual stream."""
    output = getattr(module, "output", None)
    return output is not None and any("norm" in name.lower() for name, _ in output.named_children())


def _kind_of(attribute: str, mixer: nn.Module, layer_type: str) -> str:
    name = type(mixer).__name__
    if type(mixer).__module__.startswith("fla."):
        return "attention" if name == "Attention" else _snake(name)
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, name)), None)
    if kind == "attention" and _SOFTMAX.fullmatch(layer_type):
        return layer_type
    return kind or _snake(name)


def _snake(name: str) -> str:
    """GatedDeltaNet -> gated_delta_net, RWKV7Attention -> rwkv7_attention."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()
