"""How a name on the command line becomes a model: its kind (`kinds.py`) identifies and loads it,
and names its tokenizer."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config, plugins
from recallkit.errors import UsageError, UserError
from recallkit.models import zoo
from recallkit.models.ablation import ablate
from recallkit.models.checkpoint_files import TOKENIZER_FILES
from recallkit.models.devices import check_fits, is_balanced, main_device
from recallkit.models.kinds import KINDS, kind_of
from recallkit.models.prefix import AS_NAMED, check_ids
from recallkit.models.protocol import ModelFacts, ModelRequest
from recallkit.models.torch_model import TorchModel
from recallkit.options import ModelOptions, ScoringOptions
from recallkit.storage import artifacts
from recallkit.text.special_tokens import NO_PREFIX, Prefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.parallel.job import WorkerSlot
    from recallkit.text.tokenizers import TextTokenizer


def describe_models() -> list[tuple[str, str]]:
    """For `recallkit models`: (name or form of a name, a line), and plug-ins of all kinds that go
    into a model or a question about it."""
    return [
        *(form for kind in KINDS for form in kind.forms.items()),
        *plugins.describe("model", "cache", "mixer", "slice"),
    ]


def identify_model(request: ModelRequest) -> str:
    """A digest of everything that decides the model's numbers, without loading it: weights, counts,
    mixers that are replaced, variant.

    Raises UserError where there is no such model, it has no mixers and some are to be replaced, or
    it has no variants.
    """
    kind = kind_of(request.spec)
    if request.ablation is not None and not kind.is_run:
        raise UserError(
            f"{kind.called} has no mixers",
            where=request.spec,
            remedy="leave out ablate",
        )
    changes = [] if request.ablation is None else [str(request.ablation)]
    if request.variant is not None:
        if not kind.has_logits or request.module is not None:
            called = "a live model" if kind.has_logits else kind.called
            raise UserError(
                f"{called} has no variants",
                where=request.name,
                remedy=f"leave out {request.variant}",
            )
        changes.append(request.variant.identify())
    own = kind.identify(request)
    return artifacts.digest_json([own, *changes]) if changes else own


def warn_remote_code(request: ModelRequest, notify: Callable[[str], None]) -> None:
    """Says whose code is about to run, where a checkpoint brings some and the user allows it.
    Raises UserError for an unknown hub id."""
    if files := kind_of(request.spec).code_files(request):
        code = f"Python code that comes with this checkpoint ({', '.join(files)})"
        notify(f"{request.spec}: --trust-remote-code runs {code}")


def load_model(request: ModelRequest) -> ScoringModel:
    """Loads the model that a request names.

    Raises UserError where there is no such model, it cannot be read, its vocabulary is too small
    for what it is to read, or it has no mixer that is to be replaced.
    """
    _check_balanced(request)
    model = kind_of(request.spec).load(request)
    check_ids(request.name, model.vocab_size, request.largest_id, request.prefix.ids)
    model.prefix = request.prefix.ids
    model.max_length = _room(model.max_length, request)
    if isinstance(model, TorchModel):
        model.records_launches = request.cuda_graphs and not is_balanced(request.device)
    if request.ablation is not None:
        ablate(model, request.ablation, request.means)
    if request.variant is not None:
        from recallkit.models.variants import apply_variant

        apply_variant(model, request.variant)
    return model


def choose_prefix(request: ModelRequest, tokenizer: TextTokenizer, bos: str | None) -> Prefix:
    """What a model reads before every text: as `bos` says, else (`auto`) as its tokenizer does.

    Models that recallkit trained, the zoo among them, were trained without any, and control models
    read none. Raises UserError for a token that the tokenizer does not have, and for a control
    model's.
    """
    if bos == "none":
        return NO_PREFIX
    kind = kind_of(request.spec)
    if bos in (None, "auto"):
        is_ours = kind.is_control or kind.reads_builtin_tokenizer or _is_trained_here(request)
        return NO_PREFIX if is_ours else tokenizer.prefix
    if kind.is_control:
        raise UserError(
            "a control model reads no prefix",
            where=request.name,
            remedy=f"leave out bos={bos}",
        )
    number = tokenizer.id_of(str(bos))
    if number is None:
        problem = f"no token {bos!r} in the vocabulary of {tokenizer.name}"
        raise UserError(
            problem,
            where=request.name,
            remedy="give one that it has, bos=none or bos=auto",
        )
    return Prefix((number,), str(bos), AS_NAMED)


def _is_trained_here(request: ModelRequest) -> bool:
    if request.module is not None:
        from recallkit.models.language_model import LanguageModel

        return isinstance(request.module, LanguageModel)
    return Path(request.spec).is_dir() and zoo.is_ours(Path(request.spec))


def load_unchanged(request: ModelRequest, digest: str) -> ScoringModel:
    """`load_model`. Raises UserError if the model's files are not those of the digest, as where
    they were replaced meanwhile."""
    model = load_model(request)
    if identify_model(request) != digest:
        raise UserError(
            "its files changed while it was scored",
            where=request.spec,
            remedy="score it again as it is now",
        )
    return model


def on_its_device(request: ModelRequest, slot: WorkerSlot) -> ModelRequest:
    """The request of a worker, with the slot's GPU, by turns; on CPU this process gets the slot's
    share of the threads."""
    import torch

    if request.device in ("auto", "cuda") and torch.cuda.is_available():
        return replace(request, device=f"cuda:{slot.place % torch.cuda.device_count()}")
    torch.set_num_threads(min(torch.get_num_threads(), slot.num_threads))
    return request


def check_model(request: ModelRequest) -> ModelFacts:
    """Checks what can be checked before the weights are read; returns what is known of the model.

    Raises UserError for a device, files or a package that are missing, unreadable files, and a
    vocabulary too small for what is read.
    """
    kind = kind_of(request.spec)
    if kind.is_run:
        main_device(request.device)
        _check_balanced(request)
    facts = kind.facts(request) or ModelFacts()
    if facts.vocab_size is not None:
        check_ids(request.name, facts.vocab_size, request.largest_id, request.prefix.ids)
    return replace(facts, max_length=_room(facts.max_length, request))


def check_memory(request: ModelRequest, facts: ModelFacts) -> None:
    """Raises UserError where a model and a batch exceed the free memory; see `check_fits`."""
    keeps_weights = request.variant is None or request.variant.weights is None
    can_balance = keeps_weights and kind_of(request.spec).can_balance(request)
    check_fits(request, facts.num_weights, facts.vocab_size, can_balance=can_balance)


def _check_balanced(request: ModelRequest) -> None:
    """Raises UserError for `device=balanced` where weights cannot be spread over devices."""
    kind = kind_of(request.spec)
    if not kind.is_run or not is_balanced(request.device):
        return
    if not kind.can_balance(request):
        raise UserError(
            "only a model of transformers, without an adapter, is spread over devices",
            where=request.name,
            remedy="leave out device=balanced; a GGUF file and our own mixers need one device",
        )
    if request.variant is not None and request.variant.weights is not None:
        raise UserError(
            f"weights={request.variant.weights} needs all weights on one device",
            where=request.name,
            remedy="leave out device=balanced or weights=",
        )


def _room(max_length: int | None, request: ModelRequest) -> int | None:
    """Ids of text that a context has room for behind the prefix."""
    return None if max_length is None else max_length - len(request.prefix.ids)


def find_precision(request: ModelRequest) -> str:
    """The precision of a request, `auto` resolved: on a GPU the checkpoint's own if it has that, on
    CPU float32; a live model's own."""
    if request.dtype != "auto":
        return request.dtype
    if request.module is None and main_device(request.device).type != "cuda":
        return "float32"
    import torch

    facts = kind_of(request.spec).facts(request)
    dtype = facts.dtype if facts else None
    lacking = dtype == "bfloat16" and torch.cuda.is_available()
    lacking = lacking and not torch.cuda.is_bf16_supported()
    return "float32" if dtype not in ("bfloat16", "float16") or lacking else str(dtype)


# ------------------------------------------------------------------------------------ its tokenizer


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model; None if there is none."""
    return kind_of(spec).own_tokenizer(spec)


def usual_tokenizer(spec: str, chosen: Any) -> str | None:
    """The tokenizer that the user gives, else the model's own, as `load_tokenizer` takes it; of the
    zoo the built-in one."""
    from recallkit.text.tokenizers import BUILTIN

    own = BUILTIN if kind_of(spec).reads_builtin_tokenizer else own_tokenizer(spec)
    return tokenizer_name(chosen) or own


def tokenizer_name(tokenizer: Any) -> str | None:
    """A tokenizer as `load_tokenizer` takes it; an object of tokenizers or transformers is written
    to the cache folder.

    Raises UserError for an object that has no fast tokenizer in it.
    """
    if tokenizer is None or isinstance(tokenizer, str):
        return tokenizer
    if isinstance(tokenizer, Path):
        return str(tokenizer)
    backends = [getattr(tokenizer, name, None) for name in ("backend_tokenizer", "backend")]
    backend = next((part for part in backends if part is not None), tokenizer)
    if not hasattr(backend, "to_str"):
        problem = f"an object of {type(tokenizer).__name__} is not a tokenizer that can be read"
        raise UserError(
            problem,
            where="tokenizer",
            remedy="give a path, a tokenizers.Tokenizer or a fast tokenizer of transformers",
        )
    names = ("bos_token", "eos_token", "pad_token", "add_bos_token")
    tokens = {name: getattr(tokenizer, name, None) for name in names}
    written = {"tokenizer.json": backend.to_str(), "tokenizer_config.json": json.dumps(tokens)}
    folder = config.home() / "tokenizers" / artifacts.digest_json(written)
    if not all((folder / name).exists() for name in written):
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in written.items():
            with artifacts.replacing(folder / name) as temporary:
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

    if files := [spec.shown for spec in models if kind_of(spec.location).name == "recorded"]:
        problem = "recorded NLLs are of a text that is sliced already"
        raise UsageError(
            problem,
            where=files[0],
            remedy="give its slice directory in place of the text",
        )
    read = [spec for spec in models if not kind_of(spec.location).is_control]
    requests = {spec: _request_to_check(spec, options) for spec in read}
    facts = {spec: check_model(request) for spec, request in requests.items()}
    for spec, request in requests.items() if isinstance(options, ScoringOptions) else ():
        precise = replace(request, dtype=find_precision(request))
        check_memory(precise, facts[spec])
    names = {}
    for spec in requests:
        chosen = spec.tokenizer or options.model_tokenizer
        names[spec.shown] = usual_tokenizer(spec.location, chosen)
    lacking = next((shown for shown, name in names.items() if name is None), None)
    if tokenizer is None and lacking is not None:
        raise UsageError(
            "brings no tokenizer",
            where=lacking,
            remedy="name that with which it was trained: PATH,tokenizer=FILE",
        )
    known = {shown: name for shown, name in names.items() if name is not None}
    loaded = {shown: load_tokenizer(name, end_token=end_token) for shown, name in known.items()}
    first = next(iter(loaded), None)
    if tokenizer is None and first is not None:
        if other := next(
            (shown for shown, one in loaded.items() if one.digest != loaded[first].digest),
            None,
        ):
            reason = "the NLLs of the other are aligned to its tokens"
            remedy = f"slice with the --tokenizer of one: {reason}"
            raise UsageError(
                f"{first} and {other} have different tokenizers",
                where="--for",
                remedy=remedy,
            )
        tokenizer = names[first]
    used, contexts = load_tokenizer(tokenizer, end_token=end_token), dict[str, int]()
    for spec, request in requests.items():
        own = loaded.get(spec.shown, used)
        if kind_of(spec.location).name == "zoo" and own.digest != used.digest:
            continue
        prefix = choose_prefix(request, own, spec.bos)
        context = _room(facts[spec].max_length, replace(request, prefix=prefix))
        if (context := _chosen_context(spec, options) or context) is not None:
            contexts[spec.shown] = context
    shortest = min(contexts, key=lambda shown: contexts[shown], default=None)
    if shortest is None or (seq_len is not None and seq_len <= contexts[shortest]):
        return tokenizer, seq_len or config.SEQ_LEN
    if seq_len is not None:
        limit = f"{shortest} reads {contexts[shortest]:,} ids of text at once"
        problem = f"{limit}, and a sequence has {seq_len:,}"
        raise UsageError(
            problem,
            where="--seq-len",
            remedy=f"give {contexts[shortest]} or less, or leave it out",
        )
    return tokenizer, min(config.SEQ_LEN, contexts[shortest])


def _chosen_context(spec: ModelSpec, options: ModelOptions) -> int | None:
    """The context that the user chose for a model; None where it reads in windows of that size."""
    reads_on = spec.stride or getattr(options, "stride", None)
    reads_on = reads_on or getattr(options, "carry_state", False)
    return None if reads_on else spec.context or getattr(options, "context", None)


def _request_to_check(spec: ModelSpec, options: ModelOptions) -> ModelRequest:
    """The model as it is to be loaded, before it is known what it is to read."""
    return ModelRequest(
        spec.location,
        0,
        device=spec.device or options.device,
        dtype=spec.dtype or getattr(options, "dtype", None) or "float32",
        trust_remote_code=options.trust_remote_code,
        shown=spec.shown,
        module=spec.path if spec.is_live else None,
        ablation=spec.ablation,
        variant=spec.variant,
    )


def identify_tokenizer(spec: str, chosen: str | None) -> dict[str, Any] | None:
    """What distinguishes one tokenizer from another, without reading it; None for one that the
    model's own digest covers."""
    name = chosen or own_tokenizer(spec)
    path = Path(name or "")
    deciding = [path]
    if path.is_dir():
        deciding = [path / file for file in (*TOKENIZER_FILES, "tokenizer_config.json")]
    files = [file for file in deciding if file.is_file() and (chosen or file.suffix != ".gguf")]
    digests = [[file.name, artifacts.digest_weights(file)] for file in files] if name else []
    digest = artifacts.digest_json(digests) if digests else None
    where = str(Path(chosen).resolve()) if chosen and Path(chosen).exists() else chosen
    return {"given": where, "digest": digest} if chosen or digest else None
