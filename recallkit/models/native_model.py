"""Models that run on our own mixers: the zoo, checkpoints of Based's and Mamba's authors and of
fla, RWKV files.

Each is read into an `ArchitectureConfig` and weights by a module of its own; `NativeModel` runs
them all.
"""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models import fla, published, rwkv_file, zoo
from recallkit.models.checkpoint_files import TOKENIZER_FILES, names_in_index
from recallkit.models.devices import choose_device, choose_dtype, memory_errors
from recallkit.models.protocol import ModelFacts
from recallkit.models.torch_model import TorchModel, wide
from recallkit.quiet_transformers import first_line
from recallkit.registry import may_be_hub_id
from recallkit.storage import artifacts, hashing
from recallkit.storage.hub import hub_file, hub_file_if_any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.reference import TokenNll
    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.compression import Compression
    from recallkit.models.language_model import LanguageModel
    from recallkit.models.plan import ModelPlan


def identify(plan: ModelPlan) -> str:
    """Digest of an RWKV file, or of config, weights and plug-ins of `zoo:NAME` or a directory.
    Raises UserError where one is missing."""
    source = _source(plan.location)
    if source.is_file():
        return hashing.digest_weights(source)
    module = zoo if zoo.is_ours(source) else published
    names = (module.CONFIG, module.WEIGHTS)
    files = [[name, hashing.digest_weights(zoo.existing(source / name))] for name in names]
    return hashing.digest_json(
        [*files, *(zoo.read_config(source).identify_plugins() if zoo.is_ours(source) else [])],
    )


def facts(plan: ModelPlan) -> ModelFacts | None:
    """Of a checkpoint of ours, or an RWKV file: from its config or header. None for layouts whose
    shapes are in the weights."""
    source = _source(plan.location)
    if source.is_file():
        return ModelFacts(vocab_size=rwkv_file.read_vocab_size(source))
    if not zoo.is_ours(source):
        return None
    config = zoo.read_config(source)
    layers: dict[str, list[int]] = {}
    for number, layer in enumerate(config.layers):
        layers.setdefault(layer.mixer, []).append(number)
    return ModelFacts(config.vocab_size, config.max_length, layers=layers)


def load(plan: ModelPlan) -> NativeModel:
    """Loads `zoo:NAME`, an RWKV file, a directory, or a hub id whose layout is one of `published`
    or of `fla`.

    Raises UserError where it cannot be read, or its weights do not fit its config.
    """
    source = _source(plan.location)
    with memory_errors():
        return run_native(plan, build_model(*_read(source), source))


def _read(source: Path) -> tuple[ArchitectureConfig, dict[str, Tensor]]:
    if source.is_file():
        return rwkv_file.read_rwkv_file(source)
    if zoo.is_ours(source):
        return zoo.read_ours(source)
    if published.is_published(source):
        return published.read_published(source)
    return fla.read_fla(source)


def _source(spec: str) -> Path:
    if spec.startswith(zoo.PREFIX):
        return zoo.find_shipped(spec)
    return Path(spec) if Path(spec).exists() or not may_be_hub_id(spec) else _hub_folder(spec)


def _hub_folder(spec: str) -> Path:
    """The folder of a hub id's config.json and weights, in the hub's cache. Raises UserError as
    `hub_file` does."""
    folder = hub_file(spec, "config.json").parent
    index = hub_file_if_any(spec, "model.safetensors.index.json")
    names = ["model.safetensors"] if index is None else names_in_index(index)
    if published.is_layout(artifacts.json_object(folder / "config.json")):
        names = [published.WEIGHTS]
    for name in names:
        hub_file(spec, name)
    return folder


def run_native(plan: ModelPlan, model: LanguageModel) -> NativeModel:
    """The model on the device and in the precision of a plan."""
    device = choose_device(plan.device)
    return NativeModel(model.to(device, choose_dtype(plan.dtype)).eval(), plan.location, device)


def own_tokenizer(spec: str) -> str | None:
    """The directory, if a tokenizer's files are in it."""
    return spec if any((Path(spec) / name).is_file() for name in TOKENIZER_FILES) else None


def build_model(
    config: ArchitectureConfig,
    weights: dict[str, Tensor],
    source: Path,
) -> LanguageModel:
    """The model of a config with these weights, in float32; `source` is where they come from, for
    errors.

    Raises UserError for an invalid config, and for weights that do not fit it.
    """
    from recallkit.models.language_model import LanguageModel, WithoutStorage

    try:
        with WithoutStorage():
            skeleton = LanguageModel(config)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise UserError(
            f"its config is not that of a model ({first_line(error)})",
            where=source,
            remedy="check config.json",
        ) from error
    if odd := next(
        (name for name, value in weights.items() if not value.is_floating_point()),
        None,
    ):
        problem = f"weight {odd} is of type {weights[odd].dtype}"
        problem = f"{problem}, and only floating-point weights are read"
        raise UserError(problem, where=source, remedy="give the model before it was quantised")
    try:
        skeleton.load_state_dict(
            {name: value.float() for name, value in weights.items()},
            assign=True,
        )
    except RuntimeError as error:
        # torch's message lists the missing, the superfluous and those of another shape, a line for
        # each.
        first = textwrap.shorten(str(error).splitlines()[1], 200)
        problem = f"its weights do not fit its config: {first}"
        raise UserError(
            problem,
            where=source,
            remedy="check that config and weights belong together",
        ) from error
    return skeleton


class NativeModel(TorchModel):
    """A language model of ours behind `ScoringModel`; its state can be carried and joined, whatever
    its mixers."""

    model: LanguageModel

    def __init__(self, model: LanguageModel, name: str, device: torch.device) -> None:
        """Raises UserError for a model whose prefix is read in both directions: its NLLs would be
        those of ids that it has seen."""
        if model.prefix:
            problem = f"it sees its first {model.prefix:,} ids before it predicts them"
            raise UserError(
                problem,
                where=name,
                remedy="give a causal model, as of linear_attention",
            )
        super().__init__(
            name,
            device,
            vocab_size=model.config.vocab_size,
            max_length=model.max_length,
        )
        self.model = model

    @property
    def can_join(self) -> bool:
        """See `TorchModel.can_join`: every mixer keeps its rows apart, whatever they have read."""
        return True

    @property
    def has_fixed_state(self) -> bool:
        """See `TorchModel.has_fixed_state`: no mixer keeps the keys of all ids."""
        return not self._layout.grows

    def forward(
        self,
        inputs: Tensor,
        state: Any = None,
        *,
        carry: bool = False,
    ) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states."""
        if not carry:
            return self.model.hidden(inputs), None
        return self.model.read(
            inputs,
            self.model.initial_state(len(inputs)) if state is None else state,
        )

    def by_layer(self, state: Any) -> Sequence[Any]:
        """See `TorchModel.by_layer`."""
        return [layer["mixer"] for layer in state]

    def compress(self, state: Any, compression: Compression) -> Any:
        """See `TorchModel.compress`: keys and values of full attention, and what recurrent mixers
        add up."""
        from recallkit.models.mixers.api import ACCUMULATED
        from recallkit.models.mixers.attention import Attention

        layers = []
        for block, layer in zip(self.model.blocks, state, strict=True):
            mixer = dict(layer["mixer"])
            if type(block.mixer) is Attention:
                mixer["keys"], mixer["values"] = compression.keep(
                    mixer["keys"],
                    mixer["values"],
                    int(mixer["num_read"].max()),
                )
            for name in mixer.keys() & set(ACCUMULATED):
                mixer[name] = compression.round(mixer[name])
            layers.append({**layer, "mixer": mixer})
        return layers

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        from recallkit.kernels.token_nll.api import token_nll

        return token_nll(outputs, self.model.head_weight, targets)

    def logits(self, outputs: Tensor) -> Tensor:
        """See `TorchModel.logits`."""
        hidden, weight = (wide(part) for part in (outputs, self.model.head_weight))
        return hidden @ weight.T
