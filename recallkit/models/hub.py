"""Files of models on the Hugging Face hub, from its cache or downloaded."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from recallkit.errors import UserError
from recallkit.models import published
from recallkit.models.checkpoint_files import names_in_index
from recallkit.registry import may_be_hub_id, split_revision
from recallkit.storage import artifacts

OLD_NAMES = dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community") | {"distilgpt2": "distilbert"}
"""The hub's old names of one word, which adapters and articles still use, and who owns them now."""

_unreachable = threading.Event()
"""Set where the hub could not be reached once: it tries for half a minute, and is not asked again."""


def hub_file(spec: str, name: str) -> Path:
    """A file of a hub id (OWNER/NAME or OWNER/NAME@REVISION), in the hub's cache.

    Raises UserError where there is none, and for a name that is not a hub id.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not may_be_hub_id(spec):
        owner = OLD_NAMES.get(spec)
        remedy = f"on the hub it is {owner}/{spec}" if owner else "give a model directory, a .gguf file or a hub id (OWNER/NAME)"
        raise UserError("no such file or directory", where=spec, remedy=remedy)
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry, then raises
    try:
        hub_id, revision = split_revision(spec)
        return Path(hf_hub_download(hub_id, name, revision=revision, local_files_only=_unreachable.is_set()))
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        is_answer = isinstance(error, HfHubHTTPError | HFValidationError)  # of the hub, or of its client before it asked
        if not (is_answer or constants.HF_HUB_OFFLINE):
            _unreachable.set()
        problem, remedy = _reason(error, name) if is_answer else _absence(constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE)
        raise UserError(problem, where=spec, remedy=remedy) from error


_LOCAL = "give a model directory or a .gguf file"


def _absence(cache: str, is_offline: bool) -> tuple[str, str]:
    reached = "HF_HUB_OFFLINE is set" if is_offline else "the hub cannot be reached"
    problem = f"no such file or directory; as a model of the hub it is not in the cache ({cache}), and {reached}"
    return problem, f"download it where there is a network, or {_LOCAL}"


def _reason(error: Exception, name: str) -> tuple[str, str]:
    """What is wrong with a hub id, and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return "a gated model of the hub", "accept its terms on its page, then log in with `hf auth login`"
    if isinstance(error, errors.RepositoryNotFoundError):
        return "no such file or directory, and no such model on the hub", f"check the spelling, log in if it is private, or {_LOCAL}"
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return f"this model of the hub has no {name}", f"check that it is a language model of transformers, or {_LOCAL}"
    return f"neither a model directory nor a model that the hub provides ({type(error).__name__})", f"check the spelling, or {_LOCAL}"


def hub_file_if_any(spec: str, name: str) -> Path | None:
    """The same; None where there is none, for whatever reason."""
    try:
        return hub_file(spec, name)
    except UserError:
        return None


def hub_folder(spec: str) -> Path:
    """The folder of a hub id's config.json and weights, in the hub's cache. Raises UserError as `hub_file` does."""
    folder = hub_file(spec, "config.json").parent
    index = hub_file_if_any(spec, "model.safetensors.index.json")
    names = ["model.safetensors"] if index is None else names_in_index(index)
    if published.is_layout(artifacts.json_object(folder / "config.json")):
        names = [published.WEIGHTS]
    for name in names:
        hub_file(spec, name)
    return folder
