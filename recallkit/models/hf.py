"""Causal language models that transformers loads: a directory, a GGUF file or a hub id.

Hidden states come from the backbone and go through the head a few rows at a time, so that logits of a whole batch never
exist; where a model does more to its logits than a linear layer (a soft cap, a scale), its own forward is used.
"""

from __future__ import annotations

import contextlib
import io
import struct
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import artifacts, registry
from recallkit.errors import UserError
from recallkit.models.torch_model import TorchModel, choose_device, choose_dtype

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import Tensor

    from recallkit.kernels.token_nll.api import TokenNll
    from recallkit.models.api import ModelRequest

_DECIDING_FILES = ("config.json", "adapter_config.json", "*.index.json", "*.safetensors", "*.bin")
_TRAINING_FILES = frozenset({"training_args.bin", "optimizer.bin", "scheduler.bin", "scaler.bin"})
"""Left beside the weights by trainers; they decide no score, and a tokenizer or a README decides none either."""


def load_transformers(request: ModelRequest) -> TransformersModel:
    """Loads a model in evaluation mode.

    Raises UserError where transformers cannot read it, where weights are missing from the files, or without the device.
    """
    device = choose_device(request.device)
    dtype = choose_dtype(request.dtype)
    path = Path(request.spec)
    if path.is_file() and path.suffix != ".gguf":
        raise UserError("not a model: a directory, a .gguf file or a hub id is wanted", where=request.spec)
    source, options = (str(path.parent), {"gguf_file": path.name}) if path.is_file() else (request.spec, {})
    model = _from_pretrained(request.spec, source, dtype, options)
    if model.get_input_embeddings() is None or model.get_output_embeddings() is None:
        raise UserError("not a language model with input and output embeddings", where=request.spec)
    return TransformersModel(model.to(device).eval(), request.spec, device)


def identify_transformers(request: ModelRequest) -> str:
    """Digest of what decides a model's numbers, precision aside: the files of a local one, the commit of a hub's.

    Raises UserError where there is no such model.
    """
    path = Path(request.spec)
    if path.is_file():
        return artifacts.digest_file(path)
    if path.is_dir():
        found = sorted({file for pattern in _DECIDING_FILES for file in path.glob(pattern) if file.name not in _TRAINING_FILES})
        return artifacts.digest_json([[file.name, artifacts.digest_file(file)] for file in found])
    return _hub_commit(request.spec)


def _hub_commit(spec: str) -> str:
    """The commit that a hub id stands for: part of the path of its files in the hub's cache."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not registry.may_be_hub_id(spec):
        raise UserError("no such file or directory", where=spec, remedy="give a model directory, a .gguf file or a hub id")
    try:
        return Path(hf_hub_download(spec, "config.json")).parent.name
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise UserError(
            f"neither a model directory nor a model that the hub gives ({type(error).__name__})",
            where=spec,
            remedy="check the spelling and the network, or give a directory or a .gguf file",
        ) from error


FAILURES_TO_READ = (
    OSError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    TypeError,
    RuntimeError,
    ImportError,
    EOFError,
    struct.error,
)
"""What transformers and its parsers raise at files that are damaged, or of a kind that they do not know."""


def first_line(error: Exception) -> str:
    """What a library says first; the name of its error where it says nothing."""
    if isinstance(error, struct.error):
        return "the file is damaged, or ends too early"
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


@contextlib.contextmanager
def quiet_transformers() -> Iterator[None]:
    """No progress bars and no advice: what matters of it becomes an error of ours."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        # The GGUF reader has a bar of its own that heeds no switch: it asks for sys.stderr, the log has its own handle.
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


def _from_pretrained(spec: str, source: str, dtype: torch.dtype, options: dict[str, Any]) -> Any:
    import pickle

    from safetensors import SafetensorError
    from transformers import AutoModelForCausalLM

    with quiet_transformers():
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                source, dtype=dtype, output_loading_info=True, trust_remote_code=False, **options
            )
        except pickle.UnpicklingError as error:
            raise UserError("its .bin file holds more than weights, and could run code", where=spec, remedy="use safetensors") from error
        except (*FAILURES_TO_READ, SafetensorError) as error:
            if "trust_remote_code" in str(error):
                raise UserError("it needs Python code from its own repository, which is never run", where=spec) from error
            raise UserError(
                f"transformers cannot load it ({first_line(error)})", where=spec, remedy="give a model directory, a .gguf file or a hub id"
            ) from error
    missing = sorted(info.get("missing_keys", ()))
    if missing:
        raise UserError(
            f"{len(missing)} weights are missing from its files, {missing[0]} among them",
            where=spec,
            remedy="scores of random weights mean nothing: check the files",
        )
    return model


class TransformersModel(TorchModel):
    """A transformers model behind `ScoringModel`."""

    def __init__(self, model: Any, name: str, device: torch.device) -> None:
        config = model.config.get_text_config()
        length = getattr(config, "max_position_embeddings", None)
        super().__init__(
            name,
            device,
            vocab_size=int(model.get_output_embeddings().weight.shape[0]),
            max_length=int(length) if isinstance(length, int) and length > 0 else None,
        )
        self.model = model
        self.config = config
        self.head_is_linear = self._check_head()

    def bytes_per_token(self, seq_len: int) -> int:
        """See `TorchModel.bytes_per_token`: the widest activations of one layer, in float32."""
        width = int(getattr(self.config, "hidden_size", 1024))
        inner = int(getattr(self.config, "intermediate_size", None) or 4 * width)
        state = int(getattr(self.config, "state_size", 0) or 0)
        heads = int(getattr(self.config, "num_attention_heads", 0) or 0)
        return 4 * (8 * width + 4 * inner + 4 * inner * state + 2 * heads * seq_len)

    def forward(self, inputs: Tensor, state: Any = None, *, carry: bool = False) -> tuple[Tensor, Any]:
        """See `TorchModel.forward`: hidden states where the head is linear, else logits."""
        if not self.head_is_linear:
            return self.model(input_ids=inputs, use_cache=False).logits, None
        return self.model.base_model(input_ids=inputs, use_cache=False).last_hidden_state, None

    def reduce(self, outputs: Tensor, targets: Tensor) -> TokenNll:
        """See `TorchModel.reduce`."""
        from recallkit.kernels.token_nll.api import logits_nll, token_nll

        if not self.head_is_linear:
            return logits_nll(outputs, targets)
        head = self.model.get_output_embeddings()
        return token_nll(outputs, head.weight, targets, bias=getattr(head, "bias", None))

    def _check_head(self) -> bool:
        """Whether the logits are the head's linear layer on the backbone's last hidden state, tried on a few ids."""
        import torch

        head = self.model.get_output_embeddings()
        if not isinstance(head, torch.nn.Linear) or self.model.base_model is self.model:
            return False
        ids = torch.arange(min(8, self.max_length or 8), device=self.device)[None] % self.vocab_size
        with torch.inference_mode():
            expected = self.model(input_ids=ids, use_cache=False).logits.float()
            hidden = getattr(self.model.base_model(input_ids=ids, use_cache=False), "last_hidden_state", None)
            if hidden is None:
                return False
            # The largest logit sets the scale: a soft cap or a factor changes it far beyond rounding.
            difference = (head(hidden).float() - expected).abs().max()
            return bool(difference <= 1e-3 * expected.abs().max().clamp(min=1e-6))
