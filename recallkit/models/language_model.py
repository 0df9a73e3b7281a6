"""A language model built from any sequence mixers: embedding, pre-norm blocks of a mixer and an
MLP, and a head.

The Llama recipe (RMSNorm, SwiGLU, tied head) is the default; checkpoints that follow other recipes
differ by the options of `ArchitectureConfig`. A sequence is processed at once, or in chunks with
the state carried between them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from recallkit.models.mixers import make_mixer
from recallkit.models.mixers.api import applied, linear_flops
from recallkit.models.mixers.rwkv_channel_mix import RWKVChannelMix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recallkit.models.architecture import ArchitectureConfig, LayerConfig
    from recallkit.models.mixers.api import Mixer, State


class LanguageModel(nn.Module):
    """Ids (b, t) to logits (b, t, vocab). Raises UserError for an unknown mixer, ValueError for
    options that do not fit the mixer."""

    def __init__(self, config: ArchitectureConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.d_model)
        self.positions: nn.Embedding | None = None
        if config.positions == "learned":
            self.positions = nn.Embedding(config.max_length or 0, config.d_model)
        self.embedding_norm = _norm(config) if config.embedding_norm else None
        blocks: Any = nn.ModuleList(Block(config, layer) for layer in config.layers)
        self.blocks: Sequence[Block] = blocks
        self.norm = _norm(config)
        self.head: nn.Linear | None = None
        if not config.tied_head:
            self.head = nn.Linear(config.d_model, config.vocab_size, bias=False)

    @property
    def head_weight(self) -> Tensor:
        """(vocab, d): the embedding where the head is tied to it."""
        return self.embedding.weight if self.head is None else self.head.weight

    @property
    def max_length(self) -> int | None:
        """Longest sequence that it can read: the smallest limit of the config and the mixers; None
        where there is no limit."""
        limits = [self.config.max_length, *(block.mixer.max_length for block in self.blocks)]
        return min((limit for limit in limits if limit is not None), default=None)

    @property
    def prefix(self) -> int:
        """Most ids at the beginning that are read in both directions, so that they are not
        predicted; 0 in a causal model."""
        return max((block.mixer.prefix for block in self.blocks), default=0)

    def hidden(self, ids: Tensor) -> Tensor:
        """Ids (b, t) to normalised states (b, t, d), which `head_weight` maps to logits."""
        x = self._embedded(ids)
        for block in self.blocks:
            x = block(x, ids)
        return applied(self.norm, x)

    def forward(self, ids: Tensor) -> Tensor:
        """Ids (b, t) to logits (b, t, vocab)."""
        return functional.linear(self.hidden(ids), self.head_weight)

    def reference(self, ids: Tensor) -> Tensor:
        """`hidden`, computed by each mixer's `reference`."""
        x = self._embedded(ids)
        for block in self.blocks:
            x = block.reference(x, ids)
        return applied(self.norm, x)

    def initial_state(self, batch: int) -> list[dict[str, State]]:
        """The state before the first id, layer by layer."""
        states = [block.initial_state(batch) for block in self.blocks]
        if self.positions is not None:
            states[0]["positions"] = {
                "read": self.embedding.weight.new_zeros(batch, dtype=torch.int64),
            }
        return states

    def read(
        self,
        ids: Tensor,
        state: list[dict[str, State]],
    ) -> tuple[Tensor, list[dict[str, State]]]:
        """The next ids (b, t) of each row -> `hidden` states (b, t, d) and a new state; `state` is
        unchanged."""
        read = None if self.positions is None else state[0]["positions"]["read"]
        x, states = self._embedded(ids, read), []
        for block, before in zip(self.blocks, state, strict=True):
            x, after = block.read(x, before, ids)
            states.append(after)
        if read is not None:
            states[0]["positions"] = {"read": read + ids.shape[1]}
        return self.norm(x), states

    def auxiliary_loss(self) -> Tensor | None:
        """The sum of the mixers' auxiliary losses of the last forward pass; None where no mixer has
        one."""
        losses = [block.mixer.auxiliary_loss() for block in self.blocks]
        some = [loss for loss in losses if loss is not None]
        return torch.stack(some).sum() if some else None

    def num_parameters(self, *, embeddings: bool = True) -> int:
        """Number of parameters; without embeddings and head where `embeddings` is False."""
        total = sum(parameter.numel() for parameter in self.parameters())
        parts = (self.embedding, self.positions, self.head)
        outside = sum(part.weight.numel() for part in parts if part is not None)
        return total if embeddings else total - outside

    def state_size(self, t: int) -> int:
        """Elements that the state of one sequence holds after t ids: those of its mixers, see
        `Mixer.state_size`."""
        return sum(block.mixer.state_size(t) for block in self.blocks)

    def flops(self, t: int) -> int:
        """Operations of the forward pass on one sequence of t ids: mixers, MLPs and head; not norms
        and the embedding lookup."""
        head = 2 * t * self.config.d_model * self.config.vocab_size
        return sum(block.flops(t) for block in self.blocks) + head

    def _embedded(self, ids: Tensor, read: Tensor | None = None) -> Tensor:
        """`read`: ids (b,) that came before, of a model with positions; None if none did."""
        x = applied(self.embedding, ids)
        if self.positions is not None:
            places = torch.arange(ids.shape[1], device=ids.device)
            x = x + self.positions(places if read is None else read[:, None] + places)
        return x if self.embedding_norm is None else applied(self.embedding_norm, x)


class Block(nn.Module):
    """x + mixer(norm(x)), then x + mlp(norm(x)) where there is an MLP; (b, t, d)."""

    def __init__(self, config: ArchitectureConfig, layer: LayerConfig) -> None:
        super().__init__()
        self.mixer_norm = _norm(config)
        self.mixer: Mixer = make_mixer(layer.mixer, config.d_model, **layer.options)
        self.mlp_norm = None if config.mlp == "none" else _norm(config)
        self.mlp = _mlp(config)
        self.change: Callable[[Tensor], Tensor] | None = None
        """What the mixer's outputs (..., d) go through, see `recallkit.models.ablation`."""

    def forward(self, x: Tensor, ids: Tensor) -> Tensor:
        """x: (b, t, d), ids: (b, t) -> (b, t, d)."""
        return self._after_mixer(x + self._changed(self.mixer(self.mixer_norm(x), ids)))

    def reference(self, x: Tensor, ids: Tensor) -> Tensor:
        """The same, by the mixer's `reference`."""
        return self._after_mixer(x + self._changed(self.mixer.reference(self.mixer_norm(x), ids)))

    def initial_state(self, batch: int) -> dict[str, State]:
        """The states of mixer and MLP before the first token."""
        mlp = {} if self.mlp is None else self.mlp.initial_state(batch)
        return {"mixer": self.mixer.initial_state(batch), "mlp": mlp}

    def read(
        self,
        x: Tensor,
        state: dict[str, State],
        ids: Tensor,
    ) -> tuple[Tensor, dict[str, State]]:
        """The next t tokens (b, t, d) -> their outputs and a new state."""
        mixed, mixer_state = self._mixed(self.mixer_norm(x), state["mixer"], ids)
        x = x + self._changed(mixed)
        if self.mlp is None or self.mlp_norm is None:
            return x, {"mixer": mixer_state, "mlp": {}}
        changed, mlp_state = self.mlp.read(self.mlp_norm(x), state["mlp"])
        return x + changed, {"mixer": mixer_state, "mlp": mlp_state}

    def flops(self, t: int) -> int:
        """Operations on one sequence of t tokens."""
        return self.mixer.flops(t) + (0 if self.mlp is None else self.mlp.flops(t))

    def _mixed(self, u: Tensor, state: State, ids: Tensor) -> tuple[Tensor, State]:
        """Outputs of the mixer for the next tokens; a single one goes through `step`, which is
        faster in many mixers."""
        if u.shape[1] > 1:
            return self.mixer.read(u, state, ids)
        y, after = self.mixer.step(u[:, 0], state, ids[:, 0])
        return y.unsqueeze(1), after

    def _changed(self, mixed: Tensor) -> Tensor:
        return mixed if self.change is None else self.change(mixed)

    def _after_mixer(self, x: Tensor) -> Tensor:
        return x if self.mlp is None or self.mlp_norm is None else x + self.mlp(self.mlp_norm(x))


class _EachToken(nn.Module):
    """An MLP that processes each token by itself: its state is empty."""

    def initial_state(self, batch: int) -> State:
        """Empty."""
        return {}

    def read(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """See `Block.read`."""
        return self(x), state


class SwiGLU(_EachToken):
    """down(silu(gate) * value), [gate | value] = up(x): Shazeer 2020 (arXiv 2002.05202), as in
    Llama."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, 2 * width, bias=False)
        self.down = nn.Linear(width, d_model, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        gate, value = self.up(x).chunk(2, dim=-1)
        return applied(self.down, functional.silu(gate) * value)

    def flops(self, t: int) -> int:
        """Operations on t tokens."""
        return linear_flops(t, self.up, self.down)


class GeluMLP(_EachToken):
    """down(gelu(up(x))) with biases: the feed-forward network of GPT-2, and of the released H3 and
    Hyena."""

    def __init__(self, d_model: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(d_model, width)
        self.down = nn.Linear(width, d_model)

    def forward(self, x: Tensor) -> Tensor:
        """(b, t, d) -> (b, t, d)."""
        return applied(self.down, functional.gelu(applied(self.up, x)))

    def flops(self, t: int) -> int:
        """Operations on t tokens: matrices with their biases, and eight for each gelu."""
        return linear_flops(t, self.up, self.down) + 8 * t * self.up.out_features


def _mlp(config: ArchitectureConfig) -> Any:
    make = {"none": None, "swiglu": SwiGLU, "gelu": GeluMLP, "rwkv": RWKVChannelMix}[config.mlp]
    return None if make is None else make(config.d_model, config.width)


def _norm(config: ArchitectureConfig) -> nn.Module:
    if config.norm == "rms":
        return nn.RMSNorm(config.d_model, eps=config.norm_eps)
    return nn.LayerNorm(config.d_model, eps=config.norm_eps)


class WithoutStorage(TorchFunctionMode):
    """While it is entered, layers are made with matrices on the meta device, which have no storage,
    and nothing is drawn at random.

    `torch.device("meta")` does that to every tensor, and for the first random one or logarithm
    imports torch's compiler: a second.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Any = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if func in _RANDOM:
            return options["tensor"] if "tensor" in options else args[0]
        is_matrix = func is torch.empty and isinstance(args[0], tuple)
        return func(*args, **options | ({"device": "meta"} if is_matrix else {}))


_RANDOM = (
    Tensor.normal_,
    Tensor.uniform_,
    nn.init.normal_,
    nn.init.uniform_,
    nn.init.kaiming_uniform_,
)
