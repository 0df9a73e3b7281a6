"""Models that run on our own mixers: the zoo, the checkpoints that Based's authors released, RWKV files.

Each is read into an `ArchitectureConfig` and weights by a module of its own; `NativeModel` runs them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.models import published, rwkv_file, zoo
from recallkit.models.hf import hub_commit, hub_file
from recallkit.models.resources import memory_errors
from recallkit.models.torch_model import choose_device, choose_dtype
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.native_model import NativeModel
    from recallkit.models.protocol import ModelRequest


def identify_zoo(request: ModelRequest) -> str:
    """Digest of the files of `zoo:NAME`. Raises UserError for a name that is not shipped."""
    return _identify_folder(zoo.find_shipped(request.spec))


def load_zoo(request: ModelRequest) -> NativeModel:
    """Loads `zoo:NAME`. Raises UserError for a name that is not shipped."""
    return _load(request, zoo.read_ours, zoo.find_shipped(request.spec))


def identify_published(request: ModelRequest) -> str:
    """The commit of a checkpoint of the hub. Raises UserError, see `hub_file`."""
    return hub_commit(request.spec)


def load_published(request: ModelRequest) -> NativeModel:
    """Loads a checkpoint of the Based paper, downloaded from the hub. Raises UserError as `load_directory` does."""
    weights = hub_file(request.spec, published.WEIGHTS)
    hub_file(request.spec, published.CONFIG)
    return _load(request, published.read_published, weights.parent)


def identify_directory(request: ModelRequest) -> str:
    """Digest of the config and the weights in a directory of ours, or of a published checkpoint. Raises UserError without them."""
    return _identify_folder(Path(request.spec))


def load_directory(request: ModelRequest) -> NativeModel:
    """Loads a directory of ours, or of a published checkpoint. Raises UserError where its weights do not fit its config."""
    source = Path(request.spec)
    return _load(request, zoo.read_ours if zoo.is_ours(source) else published.read_published, source)


def identify_rwkv_file(request: ModelRequest) -> str:
    """Digest of the file."""
    return artifacts.digest_weights(Path(request.spec))


def load_rwkv_file(request: ModelRequest) -> NativeModel:
    """Loads a file of rwkv.cpp. Raises UserError, see `read_rwkv_file`."""
    return _load(request, rwkv_file.read_rwkv_file, Path(request.spec))


def _identify_folder(folder: Path) -> str:
    names = (zoo.CONFIG, zoo.WEIGHTS) if zoo.is_ours(folder) else (published.CONFIG, published.WEIGHTS)
    return artifacts.digest_json([[name, artifacts.digest_weights(zoo.existing(folder / name))] for name in names])


def _load(request: ModelRequest, read: Callable[[Path], tuple[ArchitectureConfig, dict[str, Tensor]]], source: Path) -> NativeModel:
    from recallkit.models.native_model import NativeModel, build_model

    device = choose_device(request.device)
    with memory_errors():
        model = build_model(*read(source), source)
        return NativeModel(model.to(device, choose_dtype(request.dtype)).eval(), request.spec, device)
