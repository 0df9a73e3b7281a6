"""The kinds of models that a name can mean, as one table: `kind_of(spec)` says which kind it is,
and the kind does the rest.

A new kind of model is a line of `KINDS` and the module that it names; nothing heavy is imported
before a kind's functions are called.
"""

from __future__ import annotations

import importlib
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.models import published, recorded, rwkv_file, user, zoo
from recallkit.models.architecture import one_line
from recallkit.models.spec import LIVE
from recallkit.text.tokenizers import BUILTIN

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from recallkit.models.plan import ModelPlan
    from recallkit.models.protocol import ModelFacts, ScoringModel

COPY_CONTROL = "control:copy"
"""The one model that reads text rather than ids, and answers prompts alone
(recall/lm_eval_model.py)."""

GPT2, NEOX = "openai-community/gpt2", "EleutherAI/gpt-neox-20b"
"""The tokenizers of the checkpoints that Based's and Mamba's authors released without one."""

_OF_BASED = re.compile(r"hazyresearch/(based|attn|mamba)-[\w.-]+")
_OF_MAMBA = re.compile(r"state-spaces/mamba(?!.*-hf$)[\w.-]+")


@dataclass(frozen=True, slots=True)
class ModelKind:
    """A kind of model: which names mean one, and the module with the functions `identify` and
    `load`, and more where there is more."""

    name: str
    module: str
    """Of recallkit.models."""
    matches: Callable[[str], bool] | None
    """Whether a name, known or not, is of this kind; None for the kind of every name that no other
    kind matches."""
    forms: Mapping[str, str] = field(default_factory=dict)
    """For `recallkit models`: a line of description for each form of its names."""
    tokenizer: str | None = None
    """The tokenizer of all models of this kind: a hub id, or the built-in one."""
    called: str = "a model"
    """What messages call one."""
    is_control: bool = False
    """Whether it is computed from training counts: exactly, from the slices' own tokens, without a
    precision or a state."""
    is_run: bool = True
    """Whether it is run here, on a device, in a precision, on ids of its own tokenizer; control
    models and recorded NLLs are not."""
    has_logits: bool = True
    """Whether it gives predictions over the whole vocabulary."""
    reads_builtin_tokenizer: bool = False
    """Whether it reads ids of the built-in tokenizer where no other is named: it was trained on
    them, or is made for any."""

    def identify(self, plan: ModelPlan) -> str:
        """See `loading.identify_model`."""
        return str(self._function("identify")(plan))

    def load(self, plan: ModelPlan) -> ScoringModel:
        """See `loading.load_model`, which also checks the vocabulary."""
        model: ScoringModel = self._function("load")(plan)
        return model

    def facts(self, plan: ModelPlan) -> ModelFacts | None:
        """What is known of a model before its weights are read. Raises UserError where that shows
        that it cannot be used."""
        facts: ModelFacts | None = self._function("facts")(plan)
        return facts

    def can_balance(self, plan: ModelPlan) -> bool:
        """Whether its weights can be spread over several devices and a disk."""
        return bool(self._function("can_balance")(plan))

    def own_tokenizer(self, spec: str) -> str | None:
        """The tokenizer that comes with the model of a name, as `load_tokenizer` takes it; None
        where none does."""
        return self.tokenizer or self._function("own_tokenizer")(spec)

    def code_files(self, plan: ModelPlan) -> list[str]:
        """The files of Python code that come with a checkpoint and that this plan allows to
        run."""
        return self._function("code_files")(plan) or []

    def _function(self, name: str) -> Callable[..., Any]:
        return getattr(
            importlib.import_module(f"recallkit.models.{self.module}"),
            name,
            lambda _: None,
        )


def _is_user_model(spec: str) -> bool:
    """`FILE.py:FUNCTION` or a plug-in, unless something of that very name is there; or a file in
    .py whose function was forgotten."""
    if Path(spec).exists():
        return spec.endswith(".py") and Path(spec).is_file()
    return user.is_user_function(spec)


def _is_native_directory(spec: str) -> bool:
    """A directory with a checkpoint of `recallkit train`, or with the files of a published one."""
    return Path(spec).is_dir() and (zoo.is_ours(Path(spec)) or published.is_published(Path(spec)))


KINDS: tuple[ModelKind, ...] = (
    ModelKind(
        "zoo",
        "native_model",
        lambda spec: spec.startswith(zoo.PREFIX),
        {f"{zoo.PREFIX}{name}": zoo.ARCHITECTURES[name].description for name in zoo.shipped()},
        tokenizer=BUILTIN,
        reads_builtin_tokenizer=True,
    ),
    ModelKind(
        "control",
        "control",
        lambda spec: spec.startswith("control:") and spec != COPY_CONTROL,
        {
            "control:unigram": "training frequencies of single tokens: a floor",
            "control:bigram": one_line(
                "interpolated bigram model from the counts table: knows training, remembers no",
                "context",
            ),
            "control:recall": one_line(
                "control:bigram mixed with a cache of this context's bigrams: its lead over",
                "control:bigram is the cache's",
            ),
        },
        called="a control model",
        is_control=True,
        is_run=False,
        has_logits=False,
    ),
    ModelKind(
        "recorded",
        "recorded",
        recorded.is_recorded,
        {
            "FILE.npy": one_line(
                "recorded NLLs of the slices' tokens, made by any program; also .safetensors,",
                ".parquet and .arrow (docs/nlls.md)",
            ),
        },
        called="a file of recorded NLLs",
        is_run=False,
        has_logits=False,
    ),
    ModelKind(
        "construction",
        "constructions",
        lambda spec: spec.startswith("construct:"),
        {
            "construct:attention": one_line(
                "MQAR solved by attention with set weights (Zoology, proposition H.27), for any",
                "vocabulary",
            ),
            "construct:base-conv": one_line(
                "MQAR solved by BaseConv with filters of the input and set weights (Zoology,",
                "theorem H.38)",
            ),
        },
        reads_builtin_tokenizer=True,
    ),
    ModelKind(
        "copy",
        "control",
        lambda spec: spec == COPY_CONTROL,
        {
            COPY_CONTROL: one_line(
                "finds the query in its prompt and copies what follows; only for eval-recall",
            ),
        },
        called="a control model",
        is_control=True,
        is_run=False,
        has_logits=False,
    ),
    ModelKind(
        "transformers",
        "hf",
        None,
        {
            "DIRECTORY": one_line(
                "a causal language model that transformers loads: config.json with safetensors",
                "(or a weights-only .bin)",
            ),
            "FILE.gguf": "a GGUF file, dequantised by transformers",
            "OWNER/NAME": "the same from the Hugging Face hub",
        },
    ),
    ModelKind(
        "Based's checkpoints",
        "hf",
        lambda spec: _OF_BASED.fullmatch(spec) is not None and not Path(spec).exists(),
        {
            "hazyresearch/NAME": one_line(
                "the checkpoints of the Based paper, {based,attn,mamba}-{360m,1b}, or a",
                "directory with such files",
            ),
        },
        tokenizer=GPT2,
    ),
    ModelKind(
        "Mamba's checkpoints",
        "hf",
        lambda spec: _OF_MAMBA.fullmatch(spec) is not None and not Path(spec).exists(),
        {
            "state-spaces/NAME": one_line(
                "the checkpoints of the papers on Mamba, {mamba,mamba2}-{130m,...,2.8b}, or a",
                "directory with such files",
            ),
        },
        tokenizer=NEOX,
    ),
    ModelKind("native directory", "native_model", _is_native_directory),
    ModelKind(
        "RWKV file",
        "native_model",
        lambda spec: Path(spec).is_file() and rwkv_file.is_rwkv_file(Path(spec)),
        {"FILE.bin": "an RWKV-4 or RWKV-5.2 model in the file format of rwkv.cpp"},
    ),
    ModelKind(
        "server",
        "server",
        lambda spec: spec.startswith("openai:"),
        {
            "openai:URL#MODEL": one_line(
                "a model behind a server that gives log probabilities of prompts (vLLM,",
                "SGLang), such as http://localhost:8000/v1",
            ),
        },
        called="a model behind a server",
        has_logits=False,
    ),
    ModelKind(
        "user",
        "user_models",
        _is_user_model,
        {
            "FILE.py:FUNCTION": one_line(
                "a model of your own: the function returns a torch module, or anything that",
                "scores",
            ),
        },
    ),
    ModelKind("live", "live", lambda spec: spec.startswith(LIVE)),
)


def kind_of(spec: str) -> ModelKind:
    """The kind of the model that a name means, whether or not there is such a model."""
    [remaining] = (kind for kind in KINDS if kind.matches is None)
    is_of_hub = registry.may_be_hub_id(spec) and not Path(spec).exists()
    name = registry.split_revision(spec)[0] if is_of_hub else spec
    return next((kind for kind in KINDS if kind.matches and kind.matches(name)), remaining)
