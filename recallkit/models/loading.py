"""How a name on the command line becomes a model: control models, a user's own, and what transformers loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models import zoo
from recallkit.models.native import identify_native, is_native, load_native

if TYPE_CHECKING:
    from collections.abc import Callable

    from recallkit.models.protocol import ModelRequest, ScoringModel

CONTROL_MODELS: dict[str, str] = {
    "control:unigram": "recallkit.models.control:UnigramModel",
    "control:bigram": "recallkit.models.control:BigramModel",
    "control:recall": "recallkit.models.control:RecallModel",
}

COPY_CONTROL = "control:copy"
"""The one model that sees text rather than ids, and answers prompts alone (evals/copying.py)."""

DESCRIPTIONS: dict[str, str] = {
    "control:unigram": "training frequencies of single tokens: a floor",
    "control:bigram": "interpolated bigram model from the counts table: knows training, remembers no context",
    "control:recall": "control:bigram mixed with a cache of this context's bigrams: its lead over control:bigram is recall",
    "control:copy": "finds the query in its prompt and copies what follows; for eval-recall alone",
    "DIRECTORY": "a causal language model that transformers loads: config.json with safetensors (or a weights-only .bin)",
    "FILE.gguf": "a GGUF file, dequantised by transformers",
    "OWNER/NAME": "the same from the Hugging Face hub",
    "hazyresearch/NAME": "the checkpoints of the Based paper, {based,attn,mamba}-{360m,1b}, or a directory with such files",
    "FILE.bin": "an RWKV-4 or RWKV-5.2 model in the file format of rwkv.cpp",
    "FILE.py:FUNCTION": "a model of your own: the function returns a torch module, or anything that scores",
}
"""By the form of the name, a line each; the zoo's models have names of their own."""


def describe_models() -> list[tuple[str, str]]:
    """For `recallkit models`: (name, a line)."""
    zoo_models = [(f"{zoo.PREFIX}{name}", zoo.ARCHITECTURES[name].description) for name in zoo.shipped()]
    return [*zoo_models, *DESCRIPTIONS.items()]


def identify_model(request: ModelRequest) -> str:
    """A digest of everything that decides the model's numbers, without loading it: weights, precision, counts.

    Raises UserError where there is no such model.
    """
    if is_control(request.spec):
        return str(_control(request).identify(request))
    if is_user_model(request.spec):
        from recallkit.models.user import identify_user_model

        return identify_user_model(request)
    if is_native(request.spec):
        return identify_native(request)
    from recallkit.models.hf import identify_transformers

    return identify_transformers(request)


def tell_of_code(request: ModelRequest, notify: Callable[[str], None]) -> None:
    """Says whose code is about to run, where a checkpoint brings some and the user allows it. Raises UserError for an unknown hub id."""
    if files := _code_of_checkpoint(request):
        notify(f"{request.spec}: --trust-remote-code runs Python code that comes with this checkpoint ({', '.join(files)})")


def _code_of_checkpoint(request: ModelRequest) -> list[str]:
    """The files of code that a checkpoint brings and this request allows to run: names in its folder, or REPOSITORY--NAME."""
    if not request.trust_remote_code or is_control(request.spec) or is_user_model(request.spec) or is_native(request.spec):
        return []
    from recallkit.models.hf import hub_file

    path = Path(request.spec)
    if path.is_file():
        return []  # GGUF holds no code
    try:
        saved = json.loads((path / "config.json" if path.is_dir() else hub_file(request.spec, "config.json")).read_bytes())
    except (OSError, ValueError, RecursionError):
        return []  # what cannot be read is told when it is loaded
    named = saved.get("auto_map") if isinstance(saved, dict) else None
    classes = [named.get(kind) for kind in ("AutoConfig", "AutoModelForCausalLM")] if isinstance(named, dict) else []
    return sorted({f"{name.rpartition('.')[0]}.py" for name in classes if isinstance(name, str)})


def is_control(spec: str) -> bool:
    """Whether a name is that of a control model, known or not."""
    return spec.startswith("control:")


def is_user_model(spec: str) -> bool:
    """Whether a name is that of Python code: `FILE.py:FUNCTION`, or a file that ends in .py with its function forgotten."""
    return ".py:" in spec or (spec.endswith(".py") and Path(spec).is_file())


def _control(request: ModelRequest) -> Any:
    if request.spec == COPY_CONTROL:
        raise UserError("it copies text and has no likelihoods", where=request.spec, remedy="evaluate it with `recallkit eval-recall`")
    return registry.resolve(CONTROL_MODELS, request.spec, "control model")


def load_model(request: ModelRequest) -> ScoringModel:
    """Loads the model that a request names.

    Raises UserError where there is no such model, it cannot be read, or its vocabulary is smaller than the tokenizer's.
    """
    if is_control(request.spec):
        model: ScoringModel = _control(request)(request)
    elif is_user_model(request.spec):
        from recallkit.models.user import load_user_model

        model = load_user_model(request)
    elif is_native(request.spec):
        model = load_native(request)
    else:
        from recallkit.models.hf import load_transformers

        model = load_transformers(request)
    if model.vocab_size < request.vocab_size:
        name = request.tokenizer.get("name", "in use")
        raise UserError(
            f"its vocabulary has {model.vocab_size:,} entries, the tokenizer {name} {request.vocab_size:,}",
            where=request.spec,
            remedy="name the model's own tokenizer with --model-tokenizer (`bytes` for 256 entries), or slice with it (--tokenizer)",
        )
    return model
