"""Recorded NLLs: what another program computed for the tokens of a slice directory, in a file.

docs/nlls.md is the format. There is no model to run; `scoring.recording` reads the file.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from recallkit.errors import AbsentError, UserError
from recallkit.models.checkpoint_files import safetensors_header
from recallkit.storage import hashing

if TYPE_CHECKING:
    from recallkit.models.plan import ModelPlan

VERSION = 1
"""Of the format, of packs and of files of NLLs; a file that states none is of this version."""

TABLES = (".parquet", ".arrow", ".feather")

FORMAT = "see docs/nlls.md for the format"
"""The remedy where a file is not of the format."""


def is_recorded(spec: str) -> bool:
    """Whether a model's name is a file of recorded NLLs: by its ending, whether or not it is there,
    and of tensors, which are weights as a rule, by one of that name."""
    path = Path(spec)
    if path.suffix == ".safetensors" and path.is_file():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            return "nll" in safetensors_header(path)
    return path.suffix in (".npy", *TABLES) and not path.is_dir()


def file_for(spec: str, slices: Path) -> str:
    """The file of the NLLs of a slice directory: NAME itself, or of changed text NAME.changed, with
    the same ending."""
    path = Path(spec)
    changed = path.with_name(f"{path.stem}.changed{path.suffix}")
    return str(changed) if is_changed_text(slices) else spec


def is_changed_text(slices: Path) -> bool:
    """Whether a slice directory is the changed text of an intervention."""
    return (slices / "samples.parquet").is_file()


def identify(plan: ModelPlan) -> str:
    """Digest of the file, and of what is stated beside it. Raises AbsentError where there is
    none."""
    path = Path(plan.location)
    if not path.is_file():
        raise AbsentError("no such file of recorded NLLs", where=path, remedy=FORMAT)
    files = [file for file in (path, path.with_suffix(".json")) if file.is_file()]
    return hashing.digest_json([hashing.digest_weights(file) for file in files])


def load(plan: ModelPlan) -> NoReturn:
    """Raises UserError: there is no model to run."""
    raise needs_model(plan.name)


def needs_model(name: str) -> UserError:
    """The error where a model is to be run of which only NLLs are known."""
    problem = "recorded NLLs, and this needs the model itself"
    return UserError(problem, where=name, remedy="give the model, or leave it out")
