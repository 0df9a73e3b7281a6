"""Models that run on our own mixers: the zoo, checkpoints of Based's and Mamba's authors and of fla, RWKV files.

Each is read into an `ArchitectureConfig` and weights by a module of its own; `NativeModel` runs them all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.models import fla_layout, published, rwkv_file, zoo
from recallkit.models.hub import hub_file, hub_folder
from recallkit.models.resources import memory_errors
from recallkit.models.torch_model import choose_device, choose_dtype
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from recallkit.models.architecture import ArchitectureConfig
    from recallkit.models.native_model import NativeModel
    from recallkit.models.protocol import ModelRequest


def identify_zoo(request: ModelRequest) -> str:
    """Digest of the files of `zoo:NAME`. Raises UserError for a name that is not shipped."""
    return _identify(zoo.find_shipped(request.spec))


def load_zoo(request: ModelRequest) -> NativeModel:
    """Loads `zoo:NAME`. Raises UserError for a name that is not shipped."""
    return _load(request, zoo.find_shipped(request.spec))


def load_published(request: ModelRequest) -> NativeModel:
    """Loads a hub id with files in a layout of `published`. Raises UserError as `load_local` does."""
    weights, _ = (hub_file(request.spec, name) for name in (published.WEIGHTS, published.CONFIG))
    return _load(request, weights.parent)


def load_fla(request: ModelRequest, config: Mapping[str, Any]) -> NativeModel:
    """Loads a directory or hub id with a checkpoint of fla that our mixers compute. Raises UserError as `load_local` does."""
    source = Path(request.spec) if Path(request.spec).exists() else hub_folder(request.spec)
    return _built(request, fla_layout.read_fla(source, config), source)


def identify_local(request: ModelRequest) -> str:
    """Digest of an RWKV file, or of config and weights in a directory. Raises UserError where one of them is missing."""
    return _identify(Path(request.spec))


def load_local(request: ModelRequest) -> NativeModel:
    """Loads an RWKV file, or a directory. Raises UserError where it cannot be read, or its weights do not fit its config."""
    return _load(request, Path(request.spec))


def _identify(source: Path) -> str:
    if source.is_file():
        return artifacts.digest_weights(source)
    names = (zoo.CONFIG, zoo.WEIGHTS) if zoo.is_ours(source) else (published.CONFIG, published.WEIGHTS)
    return artifacts.digest_json([[name, artifacts.digest_weights(zoo.existing(source / name))] for name in names])


def _load(request: ModelRequest, source: Path) -> NativeModel:
    read = rwkv_file.read_rwkv_file if source.is_file() else zoo.read_ours if zoo.is_ours(source) else published.read_published
    with memory_errors():
        return _built(request, read(source), source)


def _built(request: ModelRequest, read: tuple[ArchitectureConfig, dict[str, Tensor]], source: Path) -> NativeModel:
    from recallkit.models.native_model import NativeModel, build_model

    device = choose_device(request.device)
    with memory_errors():
        model = build_model(*read, source)
        return NativeModel(model.to(device, choose_dtype(request.dtype)).eval(), request.spec, device)
