"""Files of the Hugging Face hub, from its cache or downloaded."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

from recallkit.errors import AbsentError, UserError
from recallkit.registry import OLD_NAMES, may_be_hub_id, split_revision

_unreachable = threading.Event()
"""Set where the hub could not be reached once: it tries for half a minute, and is not asked
again."""


_LOCAL = "give a model directory or a .gguf file"


def hub_place(spec: str) -> tuple[str, str | None]:
    """The hub id and the revision that a name means; an old name of one word is its owner's unless
    the cache has files under it."""
    from huggingface_hub import constants

    name, revision = split_revision(spec)
    is_old = name in OLD_NAMES and not Path(constants.HF_HUB_CACHE, f"models--{name}").is_dir()
    return f"{OLD_NAMES[name]}/{name}" if is_old else name, revision


def hub_file(spec: str, name: str, *, local: str = _LOCAL) -> Path:
    """A file of a hub id (OWNER/NAME or OWNER/NAME@REVISION), in the hub's cache. `local`: what
    else can be given.

    Raises AbsentError where there is none, and for a name that is not a hub id.
    """
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if not may_be_hub_id(spec):
        raise AbsentError(
            "no such file or directory", where=spec, remedy=f"{local}, or a hub id (OWNER/NAME)"
        )
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry, then raises
    try:
        hub_id, revision = hub_place(spec)
        return Path(
            hf_hub_download(hub_id, name, revision=revision, local_files_only=_unreachable.is_set())
        )
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        # of the hub, or of its client before it asked
        is_answer = isinstance(error, HfHubHTTPError | HFValidationError)
        if not (is_answer or constants.HF_HUB_OFFLINE):
            _unreachable.set()
        problem, remedy = (
            _reason(error, name)
            if is_answer
            else _absence(constants.HF_HUB_CACHE, constants.HF_HUB_OFFLINE)
        )
        raise AbsentError(problem, where=spec, remedy=f"{remedy}, or {local}") from error


def _absence(cache: str, is_offline: bool) -> tuple[str, str]:
    reached = "HF_HUB_OFFLINE is set" if is_offline else "the hub cannot be reached"
    return (
        f"neither here nor in the hub's cache ({cache}), and {reached}",
        "download it with a network connection",
    )


def _reason(error: Exception, name: str) -> tuple[str, str]:
    """What is wrong with a hub id, and what to do."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return (
            "a gated model of the hub",
            "accept its terms on its page, then log in with `hf auth login`",
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return (
            "no such file or directory, and no such model on the hub",
            "check the spelling, log in if it is private",
        )
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return (
            f"this model of the hub has no {name}",
            "check that it is a language model of transformers",
        )
    return (
        f"neither a model directory nor a model that the hub provides ({type(error).__name__})",
        "check the spelling",
    )


def hub_file_if_any(spec: str, name: str) -> Path | None:
    """The same; None where there is none, for whatever reason."""
    try:
        return hub_file(spec, name)
    except UserError:
        return None
