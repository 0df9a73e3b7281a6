"""Models that run on our own mixers: the zoo, checkpoints of Based's and Mamba's authors and of fla, RWKV files.

Each is read into an `ArchitectureConfig` and weights by a module of its own; `NativeModel` runs them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models import fla, published, rwkv_file, zoo
from recallkit.models.checkpoint_files import TOKENIZER_FILES
from recallkit.models.devices import choose_device, choose_dtype, memory_errors
from recallkit.models.hub import hub_file, hub_folder
from recallkit.models.protocol import ModelFacts
from recallkit.models.torch_model import TorchModel
from recallkit.quiet_transformers import first_line
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.language_model import LanguageModel
    from recallkit.models.protocol import ModelRequest, Sharing


def identify(request: ModelRequest) -> str:
    """Digest of an RWKV file, or of config and weights of `zoo:NAME` or a directory. Raises UserError where one of them is missing."""
    source = _source(request)
    if source.is_file():
        return artifacts.digest_weights(source)
    names = (zoo.CONFIG, zoo.WEIGHTS) if zoo.is_ours(source) else (published.CONFIG, published.WEIGHTS)
    return artifacts.digest_json([[name, artifacts.digest_weights(zoo.existing(source / name))] for name in names])


def facts(request: ModelRequest) -> ModelFacts | None:
    """Of a checkpoint of ours, or an RWKV file: from its config or header. None for layouts whose shapes are in the weights."""
    source = _source(request)
    if source.is_file():
        return ModelFacts(vocab_size=rwkv_file.read_vocab_size(source))
    if not zoo.is_ours(source):
        return None
    config = zoo.read_config(source)
    return ModelFacts(config.vocab_size, config.max_length)


def load(request: ModelRequest) -> NativeModel:
    """Loads `zoo:NAME`, an RWKV file or a directory. Raises UserError where it cannot be read, or its weights do not fit its config."""
    source = _source(request)
    read = rwkv_file.read_rwkv_file if source.is_file() else zoo.read_ours if zoo.is_ours(source) else published.read_published
    return _loaded(request, read, source)


def load_published(request: ModelRequest) -> NativeModel:
    """Loads a hub id with files in a layout of `published`. Raises UserError as `load` does."""
    hub_file(request.spec, published.WEIGHTS)
    return _loaded(request, published.read_published, hub_file(request.spec, published.CONFIG).parent)


def load_fla(request: ModelRequest) -> NativeModel:
    """Loads a directory or hub id with a checkpoint of fla that our mixers compute. Raises UserError as `load` does."""
    return _loaded(request, fla.read_fla, Path(request.spec) if Path(request.spec).exists() else hub_folder(request.spec))


def _loaded(request: ModelRequest, read: Callable[[Path], tuple[ArchitectureConfig, dict[str, Tensor]]], source: Path) -> NativeModel:
    with memory_errors():
        return run_native(request, build_model(*read(source), source))


def run_native(request: ModelRequest, model: LanguageModel) -> NativeModel:
    """The model on the device and in the precision of a request."""
    device = choose_device(request.device)
    return NativeModel(model.to(device, choose_dtype(request.dtype)).eval(), request.spec, device)


def own_tokenizer(spec: str) -> str | None:
    """The directory, if a tokenizer's files are in it."""
    return spec if any((Path(spec) / name).is_file() for name in TOKENIZER_FILES) else None


def _source(request: ModelRequest) -> Path:
    return zoo.find_shipped(request.spec) if request.spec.startswith(zoo.PREFIX) else Path(request.spec)


def build_model(config: ArchitectureConfig, weights: dict[str, Tensor], source: Path) -> LanguageModel:
    """The model of a config with these weights, in float32; `source` is where they come from, for errors.

    Raises UserError for an invalid config, and for weights that do not fit it.
    """
    import torch

    from recallkit.models.language_model import LanguageModel

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
    import torch

    types = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    if value.dtype not in types or value.layout is not torch.strided or value.is_meta:
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

    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states."""
        if not carry:
            return self.model.hidden(inputs), None
        return self.model.read(inputs, self.model.initial_state(len(inputs)) if state is None else state)

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        from recallkit.kernels.token_nll.api import token_nll

        return token_nll(outputs, self.model.head_weight, targets)
