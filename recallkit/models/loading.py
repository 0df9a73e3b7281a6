"""How a name on the command line becomes a model: its kind (`kinds.py`) identifies and loads it,
and names its tokenizer."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from recallkit import config, plugins
from recallkit.errors import UsageError, UserError
from recallkit.models import zoo
from recallkit.models.ablation import ablate
from recallkit.models.checkpoint_files import TOKENIZER_FILES
from recallkit.models.devices import check_fits, is_balanced, main_device
from recallkit.models.kinds import KINDS, kind_of
from recallkit.models.plan import ModelPlan
from recallkit.models.prefix import AS_NAMED, check_ids
from recallkit.models.protocol import ModelFacts
from recallkit.models.torch_model import TorchModel
from recallkit.options import ModelOptions, ScoringOptions
from recallkit.storage import hashing, whole_files
from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.job import WorkerSlot
    from recallkit.text.tokenizers import TextTokenizer


Plan = TypeVar("Plan", bound=ModelPlan)


def describe_models() -> list[tuple[str, str]]:
    """For `recallkit models`: (name or form of a name, a line), and plug-ins of all kinds that go
    into a model or a question about it."""
    return [
        *(form for kind in KINDS for form in kind.forms.items()),
        *plugins.describe("model", "cache", "mixer", "slice"),
    ]


def identify_model(plan: ModelPlan) -> str:
    """A digest of everything that decides the model's numbers, without loading it: weights, counts,
    mixers that are replaced, variant.

    Raises UserError where there is no such model, it has no mixers and some are to be replaced, or
    it has no variants.
    """
    kind = kind_of(plan.location)
    if plan.ablation is not None and not kind.is_run:
        raise UserError(
            f"{kind.called} has no mixers", where=plan.location, remedy="leave out ablate"
        )
    changes: list[Any] = [] if plan.ablation is None else [str(plan.ablation)]
    if plan.variant is not None:
        if not kind.has_logits or plan.module is not None:
            called = "a live model" if kind.has_logits else kind.called
            raise UserError(
                f"{called} has no variants", where=plan.name, remedy=f"leave out {plan.variant}"
            )
        changes.append(plan.variant.identify())
    return hashing.digest_json([kind.identify(plan), *changes]) if changes else kind.identify(plan)


def warn_remote_code(plan: ModelPlan, notify: Callable[[str], None]) -> None:
    """Says whose code is about to run, where a checkpoint brings some and the user allows it.
    Raises UserError for an unknown hub id."""
    if files := kind_of(plan.location).code_files(plan):
        notify(
            f"{plan.location}: --trust-remote-code runs Python code that comes with this "
            f"checkpoint ({', '.join(files)})"
        )


def load_model(plan: ModelPlan) -> ScoringModel:
    """Loads the model that a plan names.

    Raises UserError where there is no such model, it cannot be read, its vocabulary is too small
    for what it is to read, or it has no mixer that is to be replaced.
    """
    _check_balanced(plan)
    model = kind_of(plan.location).load(plan)
    check_ids(plan.name, model.vocab_size, plan.largest_id, plan.prefix.ids)
    model.prefix = plan.prefix.ids
    model.max_length = _room(model.max_length, plan)
    if isinstance(model, TorchModel):
        model.records_launches = plan.cuda_graphs and not is_balanced(plan.device)
    if plan.ablation is not None:
        ablate(model, plan.ablation, plan.means)
    if plan.variant is not None:
        from recallkit.models.variants import apply_variant

        apply_variant(model, plan.variant)
    return model


def choose_prefix(plan: ModelPlan, tokenizer: TextTokenizer) -> Prefix:
    """What a model reads before every text: as its `bos` says, else (`auto`) as its tokenizer does.

    Models that recallkit trained, the zoo among them, were trained without any, and control models
    read none. Raises UserError for a token that the tokenizer does not have, and for a control
    model's.
    """
    bos = plan.spec.bos
    if bos == "none":
        return NO_PREFIX
    kind = kind_of(plan.location)
    if bos in (None, "auto"):
        is_ours = kind.is_control or kind.reads_builtin_tokenizer or _is_trained_here(plan)
        return NO_PREFIX if is_ours else tokenizer.prefix
    if kind.is_control:
        raise UserError(
            "a control model reads no prefix", where=plan.name, remedy=f"leave out bos={bos}"
        )
    number = tokenizer.id_of(str(bos))
    if number is None:
        problem = f"no token {bos!r} in the vocabulary of {tokenizer.name}"
        raise UserError(
            problem, where=plan.name, remedy="give one that it has, bos=none or bos=auto"
        )
    return Prefix((number,), str(bos), AS_NAMED)


def _is_trained_here(plan: ModelPlan) -> bool:
    if plan.module is not None:
        from recallkit.models.language_model import LanguageModel

        return isinstance(plan.module, LanguageModel)
    return Path(plan.location).is_dir() and zoo.is_ours(Path(plan.location))


def load_unchanged(plan: ModelPlan) -> ScoringModel:
    """`load_model`. Raises UserError if the model's files are not those of the plan's digest, as
    where they were replaced meanwhile."""
    model = load_model(plan)
    if identify_model(plan) != plan.digest:
        raise UserError(
            "its files changed while it was scored",
            where=plan.location,
            remedy="score it again as it is now",
        )
    return model


def on_its_device(plan: Plan, slot: WorkerSlot) -> Plan:
    """The plan of a worker, with the slot's GPU, by turns; on CPU this process gets the slot's
    share of the threads."""
    import torch

    if plan.device in ("auto", "cuda") and torch.cuda.is_available():
        return replace(plan, device=f"cuda:{slot.place % torch.cuda.device_count()}")
    torch.set_num_threads(min(torch.get_num_threads(), slot.num_threads))
    return plan


def check_model(plan: ModelPlan) -> ModelFacts:
    """Checks what can be checked before the weights are read; returns what is known of the model.

    Raises UserError for a device, files or a package that are missing, unreadable files, and a
    vocabulary too small for what is read.
    """
    kind = kind_of(plan.location)
    if kind.is_run:
        main_device(plan.device)
        _check_balanced(plan)
    facts = kind.facts(plan) or ModelFacts()
    if facts.vocab_size is not None:
        check_ids(plan.name, facts.vocab_size, plan.largest_id, plan.prefix.ids)
    return replace(facts, max_length=_room(facts.max_length, plan))


def check_memory(plan: ModelPlan, facts: ModelFacts) -> None:
    """Raises UserError where a model and a batch exceed the free memory; see `check_fits`."""
    keeps_weights = plan.variant is None or plan.variant.weights is None
    can_balance = keeps_weights and kind_of(plan.location).can_balance(plan)
    check_fits(
        plan.name,
        plan.device,
        plan.dtype,
        facts.num_weights,
        facts.vocab_size,
        can_balance=can_balance,
    )


def _check_balanced(plan: ModelPlan) -> None:
    """Raises UserError for `device=balanced` where weights cannot be spread over devices."""
    kind = kind_of(plan.location)
    if not kind.is_run or not is_balanced(plan.device):
        return
    if not kind.can_balance(plan):
        raise UserError(
            "only a model of transformers, without an adapter, is spread over devices",
            where=plan.name,
            remedy="leave out device=balanced; a GGUF file and our own mixers need one device",
        )
    if plan.variant is not None and plan.variant.weights is not None:
        raise UserError(
            f"weights={plan.variant.weights} needs all weights on one device",
            where=plan.name,
            remedy="leave out device=balanced or weights=",
        )


def _room(max_length: int | None, plan: ModelPlan) -> int | None:
    """Ids of text that a context has room for behind the prefix."""
    return None if max_length is None else max_length - len(plan.prefix.ids)


def find_precision(plan: ModelPlan) -> str:
    """The precision of a plan, `auto` resolved: on a GPU the checkpoint's own if it has that, on
    CPU float32; a live model's own."""
    if plan.dtype != "auto":
        return plan.dtype
    if plan.module is None and main_device(plan.device).type != "cuda":
        return "float32"
    import torch

    facts = kind_of(plan.location).facts(plan)
    dtype = facts.dtype if facts else None
    lacking = (
        dtype == "bfloat16" and torch.cuda.is_available() and not torch.cuda.is_bf16_supported()
    )
    return "float32" if dtype not in ("bfloat16", "float16") or lacking else str(dtype)


# ------------------------------------------------------------------------------------ its tokenizer


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model; None if there is none."""
    return kind_of(spec).own_tokenizer(spec)


def usual_tokenizer(location: str, option: Any) -> str | None:
    """The tokenizer that the user names, else the model's own, as `load_tokenizer` takes it; of the
    zoo the built-in one."""
    from recallkit.text.tokenizers import BUILTIN

    name = tokenizer_name(option)
    if name:
        return name
    return BUILTIN if kind_of(location).reads_builtin_tokenizer else own_tokenizer(location)


def tokenizer_remedy(option: str | None) -> str:
    """What to do about a tokenizer that cannot be read; `option`: the one that the user names."""
    if option:
        return "give another --model-tokenizer"
    return "give the model's tokenizer with --model-tokenizer"


def tokenizer_name(option: Any) -> str | None:
    """A tokenizer as `load_tokenizer` takes it; an object of tokenizers or transformers is written
    to the cache folder.

    Raises UserError for an object that has no fast tokenizer in it.
    """
    if option is None or isinstance(option, str):
        return option
    if isinstance(option, Path):
        return str(option)
    backend = (
        getattr(option, "backend_tokenizer", None) or getattr(option, "backend", None) or option
    )
    if not hasattr(backend, "to_str"):
        problem = f"an object of {type(option).__name__} is not a tokenizer that can be read"
        remedy = "give a path, a tokenizers.Tokenizer or a fast tokenizer of transformers"
        raise UserError(problem, where="tokenizer", remedy=remedy)
    names = ("bos_token", "eos_token", "pad_token", "add_bos_token")
    tokens = {name: getattr(option, name, None) for name in names}
    files = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(tokens)}
    folder = config.home() / "tokenizers" / hashing.digest_json(files)
    if not all((folder / name).exists() for name in files):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            with whole_files.replacing(folder / name) as temporary:
                temporary.write_text(content, encoding="utf-8")
    return str(folder / "tokenizer.json")  # with what is beside it


def sequences_for(
    models: Sequence[ModelSpec],
    tokenizer: str | None = None,
    end_token: str | None = None,
    seq_len: int | None = None,
    options: ModelOptions = ModelOptions(),
) -> tuple[str | None, int]:
    """The tokenizer, as `load_tokenizer` takes it, and the predictions of a sequence with which
    text is sliced for these models.

    `tokenizer`, its `end_token` and `seq_len` are those that the user chose. Else the tokenizer is
    that of all models, None if all are control models, and a sequence as long as the smallest
    context, at most config.SEQ_LEN. A model of the zoo with another tokenizer reads any sequence,
    in windows. With options of scoring the models must fit into memory. Raises UserError for what
    `check_model` refuses, for a model without a tokenizer, for models with different ones, and for
    sequences that one of them cannot read at once.
    """
    from recallkit.text.tokenizers import load_tokenizer

    recordings = [spec.shown for spec in models if kind_of(spec.location).name == "recorded"]
    if recordings:
        problem = "recorded NLLs are of a text that is sliced already"
        remedy = "give its slice directory in place of the text"
        raise UsageError(problem, where=recordings[0], remedy=remedy)
    plans = [
        ModelPlan.with_options(
            spec, options, dtype=spec.dtype or getattr(options, "dtype", None) or "float32"
        )
        for spec in models
        if not kind_of(spec.location).is_control
    ]
    facts = {plan.name: check_model(plan) for plan in plans}
    if isinstance(options, ScoringOptions):
        for plan in plans:
            check_memory(replace(plan, dtype=find_precision(plan)), facts[plan.name])
    tokenizers: dict[str, TextTokenizer] = {}
    chosen = tokenizer
    for plan in plans:
        name = usual_tokenizer(plan.location, plan.spec.tokenizer or options.model_tokenizer)
        if name is not None:
            tokenizers[plan.name] = load_tokenizer(name, end_token=end_token)
            chosen = chosen or name
        elif tokenizer is None:
            remedy = "name that with which it was trained: PATH,tokenizer=FILE"
            raise UsageError("brings no tokenizer", where=plan.name, remedy=remedy)
    if tokenizer is None:
        _check_alike(tokenizers)
    used = load_tokenizer(chosen, end_token=end_token)
    contexts = dict[str, int]()
    for plan in plans:
        own = tokenizers.get(plan.name, used)
        if kind_of(plan.location).name == "zoo" and own.digest != used.digest:
            continue
        prefix = choose_prefix(plan, own)
        limit = _room(facts[plan.name].max_length, replace(plan, prefix=prefix))
        context = _chosen_context(plan.spec, options) or limit
        if context is not None:
            contexts[plan.name] = context
    shortest = min(contexts, key=lambda name: contexts[name], default=None)
    if shortest is None or (seq_len is not None and seq_len <= contexts[shortest]):
        return chosen, seq_len or config.SEQ_LEN
    if seq_len is not None:
        most = f"{shortest} reads {contexts[shortest]:,} ids of text at once"
        remedy = f"give {contexts[shortest]} or less, or leave it out"
        problem = f"{most}, and a sequence has {seq_len:,}"
        raise UsageError(problem, where="--seq-len", remedy=remedy)
    return chosen, min(config.SEQ_LEN, contexts[shortest])


def _check_alike(tokenizers: Mapping[str, TextTokenizer]) -> None:
    """Raises UsageError for models, by name, with different tokenizers."""
    names = list(tokenizers)
    for first, other in itertools.pairwise(names):
        if tokenizers[other].digest != tokenizers[first].digest:
            problem = f"{first} and {other} have different tokenizers"
            remedy = (
                "slice with the --tokenizer of one: the NLLs of the other are aligned to its tokens"
            )
            raise UsageError(problem, where="--for", remedy=remedy)


def _chosen_context(spec: ModelSpec, options: ModelOptions) -> int | None:
    """The context that the user chose for a model; None where it reads in windows of that size."""
    carries = getattr(options, "carry_state", False)
    if spec.stride or getattr(options, "stride", None) or carries:
        return None
    return spec.context or getattr(options, "context", None)


def identify_tokenizer(location: str, option: str | None) -> dict[str, Any] | None:
    """What distinguishes one tokenizer from another, without reading it: `option`, as the user
    names it, or a model's own. None for one that the model's own digest covers."""
    name = option or own_tokenizer(location)
    path = Path(name or "")
    names = (*TOKENIZER_FILES, "tokenizer_config.json")
    files = [path / file for file in names] if path.is_dir() else [path]
    # A GGUF file that is the model's own is part of the model's digest.
    deciding = [file for file in files if file.is_file() and (option or file.suffix != ".gguf")]
    digests = [[file.name, hashing.digest_weights(file)] for file in deciding]
    digest = hashing.digest_json(digests) if name and digests else None
    where = str(Path(option).resolve()) if option and Path(option).exists() else option
    return {"given": where, "digest": digest} if option or digest else None
