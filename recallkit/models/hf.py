"""Causal language models that transformers loads, from a directory, a GGUF file or a hub id: loaded, identified, or refused."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import registry
from recallkit.errors import UserError
from recallkit.models import adapters, facts, fla_layout, fla_models, native, published, weight_files
from recallkit.models.architecture import check_foreign
from recallkit.models.gguf_header import read_gguf_header
from recallkit.models.hub import hub_file, hub_file_if_any
from recallkit.models.refusals import TOKENIZER_FILES, check_is_model, check_quantisation, quantisation
from recallkit.models.torch_model import choose_device, choose_dtype
from recallkit.quiet_transformers import FAILURES_TO_READ, first_line, quiet_transformers
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from recallkit.models.gguf_header import GgufHeader
    from recallkit.models.native_model import NativeModel
    from recallkit.models.protocol import ModelRequest
    from recallkit.models.transformers_model import TransformersModel


def load_transformers(request: ModelRequest) -> TransformersModel | NativeModel:
    """Loads a model in evaluation mode, entirely in float64 where the request asks for that precision; an adapter is merged into its base.

    Layouts that transformers does not read run on our own mixers: those of `published` by hub id, and of `fla_layout`.

    Raises UserError where transformers cannot read it, where weights are missing from the files, where the device is missing, or
    where the model fails the checks on a few ids.
    """
    from recallkit.models.transformers_model import TransformersModel

    device = choose_device(request.device)
    path = Path(request.spec)
    if adapter := find_adapter(request.spec):
        model = adapters.merge(adapter, _from_pretrained(_base_request(adapter, request), adapter.base, {}))
    else:
        config = _config(request.spec)
        if published.is_layout(config) and not path.exists():
            return native.load_published(request)
        if fla_layout.is_readable(config):
            return native.load_fla(request, config)
        source, options = (str(path.parent), {"gguf_file": path.name}) if path.is_file() else (request.spec, {})
        model = _from_pretrained(request, source, options)
    if model.get_input_embeddings() is None or model.get_output_embeddings() is None:
        raise UserError("not a language model with input and output embeddings", where=request.spec)
    if request.dtype == "float64":
        # Some models keep a few weights and buffers in float32 in whatever precision they are loaded.
        model = model.double()
    return TransformersModel(model.to(device).eval(), request.spec, device)


def _config(spec: str) -> dict[str, Any]:
    """The config.json of a directory or hub id; an empty mapping for a GGUF file. Raises UserError for what is no model."""
    path = Path(spec)
    if path.exists():
        if path.is_dir():
            weight_files.check_folder(path)
        check_is_model(path)
    config = artifacts.json_object(path / published.CONFIG if path.exists() else hub_file(spec, published.CONFIG))
    check_quantisation(config, spec)
    return config


def identify_transformers(request: ModelRequest) -> str:
    """Digest of everything that determines the scores, except the precision: the files of a local one, the commit of a hub's.

    Where the code of a checkpoint may run, its files are part of it; that of an adapter includes its base. Raises UserError where
    there is no such model.
    """
    if adapter := find_adapter(request.spec):
        return artifacts.digest_json([adapters.identify(adapter), identify_transformers(_base_request(adapter, request))])
    _config(request.spec)
    path = Path(request.spec)
    if path.is_file():
        return artifacts.digest_weights(path)
    if path.is_dir():
        found = weight_files.deciding_files(path, with_code=request.trust_remote_code)
        return artifacts.digest_json([[str(file.relative_to(path)), artifacts.digest_weights(file)] for file in found])
    return hub_file(request.spec, "config.json").parent.name  # the commit is part of the path in the hub's cache


def find_adapter(spec: str) -> adapters.Adapter | None:
    """The PEFT adapter in a directory or of a hub id; None where there is none. Raises UserError as `read_adapter` does."""
    folder = Path(spec)
    if not folder.exists() and registry.may_be_hub_id(spec):
        if not (config := hub_file_if_any(spec, adapters.CONFIG)):
            return None
        any(hub_file_if_any(spec, name) for name in adapters.WEIGHTS)
        folder = config.parent
    return adapters.read_adapter(folder) if (folder / adapters.CONFIG).is_file() else None


def _base_request(adapter: adapters.Adapter, request: ModelRequest) -> ModelRequest:
    """The request for the model that an adapter changes. Raises UserError where that is an adapter, too."""
    if find_adapter(adapter.base):
        raise UserError(f"its base model {adapter.base} is an adapter, too", where=request.spec, remedy="merge that one first")
    return replace(request, spec=adapter.base)


def own_tokenizer(spec: str) -> str | None:
    """The tokenizer that comes with a model: the GGUF file, the directory with a tokenizer's files, or the hub id; None where none does.

    An adapter without one has that of its base model.
    """
    path = Path(spec)
    if path.exists():
        if path.is_file() or any((path / name).is_file() for name in TOKENIZER_FILES):
            return spec
        adapter = find_adapter(spec)
        return own_tokenizer(adapter.base) if adapter else None
    return spec if registry.may_be_hub_id(spec) else None


def code_files(request: ModelRequest) -> list[str]:
    """The code files of a checkpoint that this request allows to run: names in its folder, or REPOSITORY--NAME."""
    path = Path(request.spec)
    if not request.trust_remote_code or path.is_file():
        return []  # a GGUF file has no code
    if adapter := find_adapter(request.spec):
        return code_files(_base_request(adapter, request))
    # Loading reports what cannot be read.
    named = artifacts.json_object(path / "config.json" if path.is_dir() else hub_file(request.spec, "config.json")).get("auto_map")
    classes = [named.get(kind) for kind in ("AutoConfig", "AutoModelForCausalLM")] if isinstance(named, dict) else []
    return sorted({f"{name.rpartition('.')[0]}.py" for name in classes if isinstance(name, str)})


def _from_pretrained(request: ModelRequest, source: str, options: dict[str, Any]) -> Any:
    import pickle

    from huggingface_hub.errors import StrictDataclassError
    from safetensors import SafetensorError

    spec, trusted = request.spec, request.trust_remote_code
    if not options:
        fla_models.register(str(_config(spec).get("model_type")), spec, choose_device(request.device))
    if not Path(source).exists():
        source, revision = registry.split_revision(source)
        options = {**options, **({"revision": revision} if revision else {})}
    # A checkpoint's own code may raise anything.
    failures = (Exception,) if trusted else (*FAILURES_TO_READ, SafetensorError, StrictDataclassError, AssertionError)
    with quiet_transformers():
        try:
            header = read_gguf_header(Path(spec)) if "gguf_file" in options else None
            if header is None:  # a GGUF file's config is read with its weights, which takes seconds
                _check_config(source, **options)
                if not trusted:
                    facts.made_without_weights(request, _config(spec))
            else:
                options = {**options, "config": _gguf_config(source, header, **options)}
            from transformers import AutoModelForCausalLM

            loader = _own_class(source, **options) if trusted and "gguf_file" not in options else None
            model, info = (loader or AutoModelForCausalLM).from_pretrained(
                source,
                dtype=choose_dtype(request.dtype),
                output_loading_info=True,
                trust_remote_code=trusted,
                ignore_mismatched_sizes=True,  # they are refused below, by name
                **options,
            )
        except pickle.UnpicklingError as error:
            raise UserError("its .bin file contains more than weights, and could run code", where=spec, remedy="use safetensors") from error
        except failures as error:
            if "trust_remote_code" in str(error) and not trusted:
                problem = "it needs Python code from its own repository, which is never run unasked"
                raise UserError(problem, where=spec, remedy="read that code, then allow it with --trust-remote-code") from error
            if method := quantisation(_config(spec)):
                problem = f"quantised by {method}, which transformers cannot load here ({first_line(error)})"
                raise UserError(problem, where=spec, remedy="give the model before it was quantised, or a .gguf file") from error
            problem = f"transformers cannot load it ({first_line(error)})"
            raise UserError(problem, where=spec, remedy="give a model directory, a .gguf file or a hub id") from error
    _check_all_used(info, model.config.get_text_config(), spec)
    if header is not None:
        _check_number_used(model, header, spec)
    return model


_NOT_OF_TEXT = re.compile(r"(^|[._])(vision|visual|audio|image|multi_modal|multimodal|mm|mtp|nextn|v_head|inv_freq|masked_bias)([._]|$)")
"""Names of weights beside those of the language model: parts that read no text, heads of training, what is computed anew."""


def _check_all_used(info: Mapping[str, Any], config: Any, spec: str) -> None:
    """Raises UserError where the model that transformers made is not that of the files: the scores would be of another one."""
    remedy = "check that config and weights belong together"
    if missing := sorted(info.get("missing_keys", ())):
        problem = f"{len(missing)} weights are missing from its files, {missing[0]} among them"
        raise UserError(problem, where=spec, remedy="scores of random weights mean nothing: check the files")
    if mismatched := sorted(info.get("mismatched_keys", ())):
        name, *shapes = mismatched[0]
        there, wanted = (" x ".join(map(str, shape)) for shape in shapes)
        raise UserError(f"weight {name} has shape {there}, the config implies {wanted}", where=spec, remedy=remedy)
    unused = sorted(name for name in info.get("unexpected_keys", ()) if not (_NOT_OF_TEXT.search(name) or _predicts_further(name, config)))
    if unused:
        problem = f"{len(unused)} weights in its files are of no layer of its config, {unused[0]} among them"
        raise UserError(problem, where=spec, remedy=remedy)


def _predicts_further(name: str, config: Any) -> bool:
    """Whether a weight is of the layers behind the last that only predict tokens beyond the next, as DeepSeek's files have them."""
    layer, layers = re.search(r"\.layers\.(\d+)\.", name), getattr(config, "num_hidden_layers", 0)
    further = getattr(config, "num_nextn_predict_layers", None) or 0
    return layer is not None and layers <= int(layer[1]) < layers + further


_NOT_WEIGHTS = re.compile(r"rope_freqs|rope_factors|rot_embd|nextn")


def _check_number_used(model: Any, header: GgufHeader, spec: str) -> None:
    """Raises UserError where a GGUF file has more weights than the model: transformers leaves out tensors that it does not know."""
    is_tied = bool(model.config.get_text_config().tie_word_embeddings)
    skipped = [name for name in header.shapes if _NOT_WEIGHTS.search(name) or (is_tied and name.startswith("output."))]
    there = sum(math.prod(shape) for name, shape in header.shapes.items() if name not in skipped)
    used = sum(weight.numel() for weight in model.parameters())
    if there > used:
        problem = f"its tensors have {there - used:,} weights more than its architecture, which transformers would leave out"
        raise UserError(problem, where=spec, remedy="give the model before it was converted")


def _gguf_config(source: str, header: GgufHeader, **options: Any) -> Any:
    """The config of a GGUF file. Raises ValueError for implausible sizes, UserError for many more weights than the file has."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(source, **options)
    check_foreign(config.to_dict())
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    model.tie_weights()
    there = sum(math.prod(shape) for shape in header.shapes.values())
    facts.check_number(sum(weight.numel() for weight in model.parameters()), there, Path(source) / options["gguf_file"])
    return config


def _check_config(source: str, **revision: str) -> None:
    """Raises ValueError for a config.json with implausible sizes; an adapter's folder has no config.json."""
    from transformers import PreTrainedConfig

    if Path(source).is_dir() and not (Path(source) / "config.json").is_file():
        return
    config, _ = PreTrainedConfig.get_config_dict(source, **revision)
    check_foreign(config)


def _own_class(source: str, **revision: str) -> Any:
    """The class defined by a checkpoint's own code as it is now; None where there is none.

    `AutoModelForCausalLM` would reuse the first such class of a process for every later checkpoint with the same
    configuration class, and would run its code even where that is not allowed.
    """
    from transformers import PreTrainedConfig
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    config, _ = PreTrainedConfig.get_config_dict(source, **revision)
    reference = (config.get("auto_map") or {}).get("AutoModelForCausalLM")
    return get_class_from_dynamic_module(reference, source, **revision) if reference else None
