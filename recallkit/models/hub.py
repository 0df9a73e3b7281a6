"""Files of models on the Hugging Face hub, from its cache or downloaded."""

from __future__ import annotations

from pathlib import Path

from recallkit.errors import UserError
from recallkit.registry import may_be_hub_id


def hub_file(spec: str, name: str) -> Path:
    """A file of a hub id, in the hub's cache. Raises UserError where there is none, and for a name that is not a hub id."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not may_be_hub_id(spec):
        raise UserError("no such file or directory", where=spec, remedy="give a model directory, a .gguf file or a hub id")
    try:
        return Path(hf_hub_download(spec, name))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        problem = f"neither a model directory nor a model that the hub provides ({type(error).__name__})"
        remedy = "check the spelling and the network, or give a directory or a .gguf file"
        raise UserError(problem, where=spec, remedy=remedy) from error


def hub_file_if_any(spec: str, name: str) -> Path | None:
    """The same; None where there is none, for whatever reason."""
    try:
        return hub_file(spec, name)
    except UserError:
        return None


def hub_folder(spec: str) -> Path:
    """The folder of a hub id's config.json and safetensors, in the hub's cache. Raises UserError as `hub_file` does."""
    import json

    folder = hub_file(spec, "config.json").parent
    index = hub_file_if_any(spec, "model.safetensors.index.json")
    names = {"model.safetensors"} if index is None else set(json.loads(index.read_bytes())["weight_map"].values())
    for name in sorted(names):
        hub_file(spec, name)
    return folder
