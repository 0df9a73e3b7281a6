"""Causal language models that transformers loads, from a directory, a GGUF file or a hub id:
identified, checked first, and loaded."""

from __future__ import annotations

import contextlib
import pickle
import re
import tempfile
import weakref
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.display import console
from recallkit.errors import UserError
from recallkit.models import adapters, checkpoint_files, fla, foreign_code, native_model, published
from recallkit.models.architecture import check_foreign
from recallkit.models.checkpoint_files import TOKENIZER_FILES, quantisation
from recallkit.models.devices import (
    check_fits,
    choose_device,
    choose_dtype,
    is_balanced,
    main_device,
    most_weights,
)
from recallkit.models.protocol import ModelFacts
from recallkit.quiet_transformers import FAILURES_TO_READ, first_line, quiet_transformers
from recallkit.storage import artifacts, hashing
from recallkit.storage.hub import hub_file, hub_file_if_any, hub_place

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from recallkit.models.native_model import NativeModel
    from recallkit.models.plan import ModelPlan
    from recallkit.models.transformers_model import TransformersModel

_BELONG = "check that config and weights belong together"

_MOST_UNSAVED = 1.25
"""Most weights that a config asks for, by those in the files: some models compute a few, such as
positions, instead of saving them."""

_FEW = 1 << 24
"""Weights that take little memory, of which loading tells the names if they are missing."""

_MOST_PACKED = 32
"""Most weights in one number of a quantised checkpoint: a bit each."""


def load(plan: ModelPlan) -> TransformersModel | NativeModel:
    """Loads a model in evaluation mode, entirely in float64 where the plan asks for that
    precision; an adapter is merged into its base.

    Layouts that transformers does not read run on our own mixers: those of `published` by hub id,
    and those of `fla`.

    Raises UserError where transformers cannot read it, where weights are missing from the files,
    where the device is missing, or where the model fails the checks on a few ids.
    """
    from recallkit.models.transformers_model import TransformersModel

    if is_balanced(plan.device):
        return _load_balanced(plan)
    device = choose_device(plan.device)
    if adapter := find_adapter(plan.location):
        model = adapters.merge(adapter, _from_pretrained(_base_plan(adapter, plan)))
    else:
        if _is_native(plan.location):
            return native_model.load(plan)
        model = _from_pretrained(plan)
    if plan.dtype == "float64":
        # Some models keep a few weights and buffers in float32 in whatever precision they are
        # loaded.
        model = model.double()
    return TransformersModel(model.to(device).eval(), plan.location, device)


def _load_balanced(plan: ModelPlan) -> TransformersModel:
    """Spreads the weights of `device=balanced` over all GPUs, then the CPU, then a disk.

    Those on a disk are read from the checkpoint, layer by layer as they are needed; what cannot be
    read so is written to a temporary folder, which is removed with the model.
    """
    from recallkit.models.precision import exempt_hooks
    from recallkit.models.transformers_model import TransformersModel

    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="recallkit-offloaded-"))
        module = _from_pretrained(
            plan,
            device_map="balanced",
            max_memory=most_weights(plan.device),
            offload_folder=folder,
        ).eval()
        exempt_hooks(module)
        model = TransformersModel(module, plan.location, main_device(plan.device))
        weakref.finalize(model, stack.pop_all().close)
    return model


def can_balance(plan: ModelPlan) -> bool:
    """Whether accelerate can spread a model over devices: transformers loads its own format."""
    spec = plan.location
    return not (Path(spec).is_file() or find_adapter(spec) or _is_native(spec))


def _is_native(spec: str) -> bool:
    """Whether a layout that transformers does not read runs on our own mixers."""
    config = read_config(spec)
    return fla.is_readable(config) or (published.is_layout(config) and not Path(spec).exists())


def identify(plan: ModelPlan) -> str:
    """Digest of everything that determines the scores, except the precision: the files of a local
    one, the commit of a hub's.

    Where the code of a checkpoint may run, its files are part of it; that of an adapter includes
    its base. Raises UserError where there is no such model.
    """
    if adapter := find_adapter(plan.location):
        return hashing.digest_json(
            [adapters.identify(adapter), identify(_base_plan(adapter, plan))],
        )
    _checked_config(plan)
    path = Path(plan.location)
    if path.is_file():
        return hashing.digest_weights(path)
    if path.is_dir():
        files = checkpoint_files.deciding_files(path, with_code=plan.trust_remote_code)
        return hashing.digest_json(
            [[str(file.relative_to(path)), hashing.digest_weights(file)] for file in files],
        )
    # The commit is part of the path in the hub's cache.
    return hub_file(plan.location, "config.json").parent.name


def facts(plan: ModelPlan) -> ModelFacts | None:
    """Of a directory or hub id: from its config and from the model made of it without weights.

    So what is wrong with the last of several models is reported before hours of work with the
    first. Of an adapter those of the model that it changes, without the vocabulary, which it may
    enlarge. None for a GGUF file, whose header takes seconds. Raises UserError for what is not a
    model, and for a config that asks for impossible sizes.
    """
    path = Path(plan.location)
    if path.is_file():
        return None
    if (adapter := find_adapter(plan.location)) is not None:
        base = facts(_base_plan(adapter, plan))
        return None if base is None else replace(base, vocab_size=None)
    config, model = _checked_config(plan), None
    if not (published.is_layout(config) or plan.trust_remote_code):
        foreign_code.find_kernels(allowed=False)
        with quiet_transformers():
            model = _made_without_weights(plan.location, config)
    dtype = _configured_dtype(config)
    if model is None:
        return ModelFacts(dtype=dtype)
    from recallkit.models.transformers_model import context_length, text_model

    num_weights = None if quantisation(config) else _num_weights(model)
    model = text_model(model, plan.location)
    from recallkit.models.layer_kernels import layers_by_kernel

    text = model.config.get_text_config()
    _check_rotary(text, plan.location)
    context = context_length(text, model.base_model)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    return ModelFacts(vocab_size, context, dtype, num_weights, layers_by_kernel(model))


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model: the GGUF file, the directory with a tokenizer's files,
    or the hub id; None where none does.

    An adapter without one has that of its base model.
    """
    path = Path(spec)
    if path.exists():
        if path.is_file() or any((path / name).is_file() for name in TOKENIZER_FILES):
            return spec
        adapter = find_adapter(spec)
        return own_tokenizer(adapter.base) if adapter else None
    return spec if registry.may_be_hub_id(spec) else None


def code_files(plan: ModelPlan) -> list[str]:
    """The code of a checkpoint that this plan allows to run.

    Files in its folder, REPOSITORY--NAME, and what its config names beside them, as it does.
    """
    if not plan.trust_remote_code:
        return []
    if adapter := find_adapter(plan.location):
        return code_files(_base_plan(adapter, plan))
    path = Path(plan.location)  # loading reports what cannot be read
    place = path / "config.json" if path.exists() else hub_file(plan.location, "config.json")
    config = artifacts.json_object(place)
    entry = config.get("auto_map")
    entries = entry if isinstance(entry, dict) else {}
    classes = [entries.get(kind) for kind in ("AutoConfig", "AutoModelForCausalLM")]
    files = {f"{name.rpartition('.')[0]}.py" for name in classes if isinstance(name, str)}
    return sorted(files.union(foreign_code.named_code(config)))


def find_adapter(spec: str) -> adapters.Adapter | None:
    """The PEFT adapter in a directory or of a hub id; None where there is none. Raises UserError as
    `read_adapter` does."""
    folder = Path(spec)
    if not folder.exists() and registry.may_be_hub_id(spec):
        if not (config := hub_file_if_any(spec, adapters.CONFIG)):
            return None
        any(hub_file_if_any(spec, name) for name in adapters.WEIGHTS)
        folder = config.parent
    return adapters.read_adapter(folder) if (folder / adapters.CONFIG).is_file() else None


def _base_plan(adapter: adapters.Adapter, plan: ModelPlan) -> ModelPlan:
    """The plan for the model that an adapter changes. Raises UserError where that is an adapter,
    too."""
    if find_adapter(adapter.base):
        raise UserError(
            f"its base model {adapter.base} is an adapter, too",
            where=plan.location,
            remedy="merge that one first",
        )
    return replace(plan, spec=replace(plan.spec, path=adapter.base, revision=None))


# ------------------------------------------------------------ what is known before weights are read


def read_config(spec: str) -> dict[str, Any]:
    """The config.json of a directory or hub id; an empty mapping for a GGUF file.

    Raises UserError for what is not a model, for a config that asks for impossible sizes, and for a
    quantisation that transformers does not know: it would take the numbers in the files for
    weights.
    """
    path = Path(spec)
    if path.exists():
        checkpoint_files.check_is_model(path)
    config = artifacts.json_object(
        path / "config.json" if path.exists() else hub_file(spec, "config.json"),
    )
    try:
        check_foreign(config)
    except (ValueError, RecursionError) as error:
        raise UserError(
            f"its config is not that of a model ({error})",
            where=spec,
            remedy="check config.json",
        ) from error
    if method := quantisation(config):
        from transformers.quantizers.auto import AUTO_QUANTIZATION_CONFIG_MAPPING

        # The method bitsandbytes has the keys bitsandbytes_4bit and bitsandbytes_8bit.
        if not any(known.startswith(method) for known in AUTO_QUANTIZATION_CONFIG_MAPPING):
            problem = f"quantised by {method}, which the installed transformers does not know"
            raise UserError(
                problem,
                where=spec,
                remedy="give the model before it was quantised, or a .gguf file",
            )
    return config


def _checked_config(plan: ModelPlan) -> dict[str, Any]:
    """The config of a model. Raises UserError as `read_config` does, and for code that is not
    allowed."""
    config = read_config(plan.location)
    if not plan.trust_remote_code:
        foreign_code.check_code(config, plan.location)
    return config


def _place(spec: str) -> tuple[str, dict[str, Any]]:
    """Where transformers finds a model, and the options that it needs for that."""
    path = Path(spec)
    if path.is_file():
        return str(path.parent), {"gguf_file": path.name}
    hub_id, revision = (spec, None) if path.exists() else hub_place(spec)
    return hub_id, {"revision": revision} if revision else {}


def _made_without_weights(spec: str, config: Mapping[str, Any]) -> Any:
    """The model of a config, without memory for weights; None where transformers cannot make it,
    which loading explains.

    Raises UserError where a config of a directory asks for many more weights than its files have.
    """
    there = None
    if Path(spec).is_dir():
        packed = 1 if quantisation(config) is None else _MOST_PACKED
        there = checkpoint_files.count_weights(Path(spec)) * packed
    try:
        return _skeleton(spec, there)
    except UserError:
        raise
    except Exception:  # noqa: BLE001 - of transformers and of a model's own code
        return None


def _check_rotary(config: Any, spec: str) -> None:
    """Raises UserError for rotary positions that the installed transformers would ignore.

    Of families whose kinds of layer have positions of their own (olmo3, gemma3) it reads those
    alone. A checkpoint that an earlier version saved with one entry for all, such as YaRN, would be
    read without it.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    kinds = [entry for entry in rope.values() if isinstance(entry, dict)]
    others = {name: entry for name, entry in rope.items() if not isinstance(entry, dict | None)}
    if kinds and others and not any(others.items() <= kind.items() for kind in kinds):
        names = ", ".join(sorted(others))
        problem = f"transformers ignores its rope_parameters {names}: they are of no kind of layer"
        remedy = "move them into full_attention there, in config.json"
        raise UserError(problem, where=spec, remedy=remedy)


def _skeleton(spec: str, there: int | None) -> Any:
    """The model of a config, on the meta device.

    Raises UserError where it asks for so many more weights than are `there` that making them would
    exhaust the memory.
    """
    import torch
    from transformers import AutoConfig

    source, options = _place(spec)
    config = AutoConfig.from_pretrained(source, trust_remote_code=False, **options)
    check_foreign(config.to_dict())
    with torch.device("meta"):
        model: Any = _auto_class(config, spec).from_config(config, trust_remote_code=False)
    model.tie_weights()
    wanted = _num_weights(model)
    if there is not None and wanted > there * _MOST_UNSAVED + _FEW:
        raise UserError(
            f"its config asks for {wanted:,} weights, and its files have {there:,}",
            where=spec,
            remedy=_BELONG,
        )
    return model


def _num_weights(model: Any) -> int:
    return sum(weight.numel() for weight in model.parameters())


def _auto_class(config: Any, spec: str) -> Any:
    """The class of transformers that makes the language model of a config: of one that reads
    images, too, where it has none of text alone.

    Raises UserError where it has neither, and for an encoder with a decoder.
    """
    from transformers import AutoModelForCausalLM, AutoModelForMultimodalLM

    if type(config) in AutoModelForCausalLM._model_mapping or hasattr(config, "auto_map"):
        return AutoModelForCausalLM
    if type(config) in AutoModelForMultimodalLM._model_mapping and not config.is_encoder_decoder:
        return AutoModelForMultimodalLM
    problem = f"the installed transformers has no causal language model of type {config.model_type}"
    raise UserError(problem, where=spec, remedy="give a causal language model")


def _configured_dtype(config: Mapping[str, Any]) -> str | None:
    """The precision that a config names, also that of its text model."""
    nested = config.get("text_config")
    dtype = config.get("dtype") or config.get("torch_dtype")
    if not dtype and isinstance(nested, dict):
        dtype = _configured_dtype(nested)
    return dtype.removeprefix("torch.") if isinstance(dtype, str) else None


# ------------------------------------------------------------------------------------------ loading


def _from_pretrained(plan: ModelPlan, **placement: Any) -> Any:
    """The model that transformers makes of a checkpoint, if it is that of the files.

    `placement`: where weights go, as `from_pretrained` takes it. Raises UserError as `load` does.
    """
    from transformers import AutoConfig

    spec, trusted, config = plan.location, plan.trust_remote_code, _checked_config(plan)
    sizes = skeleton = None
    foreign_code.find_kernels(allowed=trusted)
    if not trusted and (note := foreign_code.explain_kernels(config, spec)):
        console.note(note)
    source, options = _place(spec)
    with quiet_transformers(), _load_errors(plan, config):
        if "gguf_file" in options:
            sizes = checkpoint_files.gguf_sizes(Path(spec))
            skeleton = _skeleton(spec, sum(sizes.values()))
            options["config"] = skeleton.config  # reading it again would take seconds
        else:
            fla.register(str(config.get("model_type")), spec, main_device(plan.device))
            if not trusted:
                skeleton = _made_without_weights(spec, config)
        if skeleton is not None and not quantisation(config):
            text = skeleton.config.get_text_config()
            vocab_size = getattr(text, "vocab_size", None)
            check_fits(
                plan.name,
                plan.device,
                plan.dtype,
                _num_weights(skeleton),
                vocab_size,
                can_balance=can_balance(plan),
            )
        loader = _own_class(config, source, options) if trusted else None
        if loader is None:
            made_config = options.get("config") or AutoConfig.from_pretrained(
                source,
                trust_remote_code=trusted,
                **options,
            )
            loader = _auto_class(made_config, spec)
        model, info = loader.from_pretrained(
            source,
            dtype=choose_dtype(plan.dtype),
            output_loading_info=True,
            trust_remote_code=trusted,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **options,
            **placement,
        )
    text = model.config.get_text_config()
    _check_rotary(text, spec)
    _check_all_used(info, text, spec)
    if sizes is not None:
        _check_number_used(model, sizes, spec)
    return model


@contextlib.contextmanager
def _load_errors(plan: ModelPlan, config: Mapping[str, Any]) -> Iterator[None]:
    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    spec, trusted = plan.location, plan.trust_remote_code
    # A checkpoint's own code may raise anything.
    expected = (*FAILURES_TO_READ, SafetensorError, StrictDataclassError, AssertionError)
    failures = (Exception,) if trusted else expected
    try:
        yield
    except UserError:
        raise
    except pickle.UnpicklingError as error:
        raise UserError(
            "its .bin file contains more than weights, and could run code",
            where=spec,
            remedy="use safetensors",
        ) from error
    except failures as error:
        if "trust_remote_code" in str(error) and not trusted:
            problem = "it needs Python code from its own repository, which is never run unasked"
            raise UserError(
                problem,
                where=spec,
                remedy="read that code, then allow it with --trust-remote-code",
            ) from error
        if method := quantisation(config):
            problem = f"quantised by {method}, which transformers cannot load here"
            problem = f"{problem} ({first_line(error)})"
            raise UserError(
                problem,
                where=spec,
                remedy="give the model before it was quantised, or a .gguf file",
            ) from error
        problem = f"transformers cannot load it ({first_line(error)})"
        raise UserError(
            problem,
            where=spec,
            remedy="give a model directory, a .gguf file or a hub id",
        ) from error


def _own_class(config: Mapping[str, Any], source: str, revision: Mapping[str, str]) -> Any:
    """The class defined by a checkpoint's own code as it is now; None where there is none.

    `AutoModelForCausalLM` would reuse the first such class of a process for every later checkpoint
    with the same configuration class, and would run its code even where that is not allowed.
    """
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    reference = (config.get("auto_map") or {}).get("AutoModelForCausalLM")
    return get_class_from_dynamic_module(reference, source, **revision) if reference else None


_PARTS = "vision|visual|audio|image|multi_modal|multimodal|mm"
_NOT_OF_TEXT = re.compile(
    rf"(^|[._])({_PARTS}|mtp|nextn|v_head|inv_freq|masked_bias)([._]|$)",
)
"""Names of weights beside those of the language model: parts that read no text, heads of training,
what is computed again."""


def _check_all_used(info: Mapping[str, Any], config: Any, spec: str) -> None:
    """Raises UserError where the model that transformers made is not that of the files: the scores
    would be of another one."""
    if missing := sorted(info.get("missing_keys", ())):
        problem = f"{len(missing)} weights are missing from its files, {missing[0]} among them"
        raise UserError(
            problem,
            where=spec,
            remedy="scores of random weights mean nothing: check the files",
        )
    if mismatched := sorted(info.get("mismatched_keys", ())):
        name, *shapes = mismatched[0]
        there, wanted = (" x ".join(map(str, shape)) for shape in shapes)
        raise UserError(
            f"weight {name} has shape {there}, the config implies {wanted}",
            where=spec,
            remedy=_BELONG,
        )
    of_text = [name for name in info.get("unexpected_keys", ()) if not _NOT_OF_TEXT.search(name)]
    unused = sorted(name for name in of_text if not _predicts_further(name, config))
    if unused:
        example = f"{unused[0]} among them"
        problem = f"{len(unused)} weights in its files are of no layer of its config, {example}"
        raise UserError(problem, where=spec, remedy=_BELONG)


def _predicts_further(name: str, config: Any) -> bool:
    """Whether a weight is of the layers behind the last that only predict tokens beyond the next,
    as DeepSeek's files have them."""
    layer, layers = re.search(r"\.layers\.(\d+)\.", name), getattr(config, "num_hidden_layers", 0)
    further = getattr(config, "num_nextn_predict_layers", None) or 0
    return layer is not None and layers <= int(layer[1]) < layers + further


_NOT_WEIGHTS = re.compile(r"rope_freqs|rope_factors|rot_embd|nextn")


def _check_number_used(model: Any, sizes: Mapping[str, int], spec: str) -> None:
    """Raises UserError where a GGUF file has more weights than the model: transformers leaves out
    tensors that it does not know."""
    is_tied = bool(model.config.get_text_config().tie_word_embeddings)
    there = 0
    for name, size in sizes.items():
        is_copy = is_tied and name.startswith("output.")
        there += 0 if is_copy or _NOT_WEIGHTS.search(name) else size
    used = sum(weight.numel() for weight in model.parameters())
    if there > used:
        more = f"{there - used:,} weights more than its architecture"
        problem = f"its tensors have {more}, which transformers would leave out"
        raise UserError(problem, where=spec, remedy="give the model before it was converted")
