"""Scoring of models that run on our own mixers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from recallkit.errors import UserError
from recallkit.kernels.token_nll.api import token_nll
from recallkit.models.language_model import LanguageModel
from recallkit.models.torch_model import TorchModel
from recallkit.quiet_transformers import first_line

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.protocol import Sharing


_WEIGHT_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def build_model(config: ArchitectureConfig, weights: dict[str, Tensor], source: Path) -> LanguageModel:
    """The model of a config with these weights, in float32; `source` is where they come from, for errors.

    Raises UserError for an invalid config, and for weights that do not fit it.
    """
    try:
        with torch.device("meta"):
            skeleton = LanguageModel(config)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(f"its config is not that of a model ({first_line(error)})", where=source, remedy="check config.json") from error
    _check_fit(skeleton, weights, source)
    # The skeleton on the meta device has no storage; the weights are assigned to it, so none are initialised at random.
    skeleton.load_state_dict({name: value.float() for name, value in weights.items()}, assign=True)
    return skeleton


def _check_fit(skeleton: LanguageModel, weights: dict[str, Tensor], source: Path) -> None:
    """Raises UserError for weights that are missing or superfluous, or of another shape or type than the config implies."""
    wanted = {name: tuple(value.shape) for name, value in skeleton.state_dict().items()}
    problems = [f"weight {name} is missing" for name in wanted if name not in weights]
    problems += [f"weight {name} does not belong to this architecture" for name in weights if name not in wanted]
    problems += [
        f"weight {name} has shape {tuple(weights[name].shape)}, the config implies {shape}"
        for name, shape in wanted.items()
        if name in weights and tuple(weights[name].shape) != shape
    ]
    problems += [f"weight {name} is not a plain floating-point tensor" for name, value in weights.items() if not _is_plain(value)]
    if problems:
        more = f" ({len(problems)} such in all)" if len(problems) > 1 else ""
        raise UserError(problems[0] + more, where=source, remedy="check that config and weights belong together")


def _is_plain(value: Tensor) -> bool:
    """Whether a weight is dense, of float16 to float64, and all of it stored: a broadcast view could be of any size."""
    if value.dtype not in _WEIGHT_TYPES or value.layout is not torch.strided or value.is_meta:
        return False
    return value.untyped_storage().nbytes() >= value.numel() * value.element_size()


class NativeModel(TorchModel):
    """A language model of ours behind `ScoringModel`; its state can be carried and joined, whatever its mixers."""

    def __init__(self, model: LanguageModel, name: str, device: torch.device) -> None:
        super().__init__(name, device, vocab_size=model.config.vocab_size, max_length=model.max_length)
        self.model = model

    @property
    def joining(self) -> Sharing | None:
        """See `TorchModel.joining`: every mixer keeps its rows apart, whatever they have read."""
        return "any"

    def bytes_per_token(self, seq_len: int) -> int:
        """See `TorchModel.bytes_per_token`: the widest activations of one block in float32, scores of 16 heads."""
        return 4 * (64 * self.model.config.d_model + 4 * self.model.config.width + 32 * seq_len)

    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states."""
        if not carry:
            return self.model.hidden(inputs), None
        return self.model.read(inputs, self.model.initial_state(len(inputs)) if state is None else state)

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        return token_nll(outputs, self.model.head_weight, targets)
