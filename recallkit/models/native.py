"""Models that run on our own mixers, found: the zoo, the checkpoints that Based's authors released, RWKV files.

Each is read into an `ArchitectureConfig` and weights by a module of its own; from there on they are one kind of model. Nothing
heavy is imported before one is loaded.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.models import published, rwkv_file, zoo
from recallkit.storage import artifacts

if TYPE_CHECKING:
    from recallkit.models.native_model import NativeModel
    from recallkit.models.protocol import ModelRequest

_PUBLISHED_ON_HUB = re.compile(r"hazyresearch/(based|attn|mamba)-[\w.-]+")


def is_native(spec: str) -> bool:
    """Whether a name is one of the zoo, known or not, a published checkpoint of the hub, or what one of the readers reads."""
    if spec.startswith(zoo.PREFIX):
        return True
    path = Path(spec)
    if path.is_dir():
        return zoo.is_ours(path) or published.is_published(path)
    if path.is_file():
        return rwkv_file.is_rwkv_file(path)
    return is_published_on_hub(spec)


def is_published_on_hub(spec: str) -> bool:
    """Whether a name is the hub's for a checkpoint of the Based paper."""
    return _PUBLISHED_ON_HUB.fullmatch(spec) is not None


def identify_native(request: ModelRequest) -> str:
    """Digest of the files that decide the numbers, the commit of the hub's. Raises UserError where there is no such model."""
    if is_published_on_hub(request.spec) and not Path(request.spec).is_dir():
        from recallkit.models.hf import hub_commit

        return hub_commit(request.spec)
    source = _source(request.spec)
    if source.is_file():
        return artifacts.digest_weights(source)
    names = (zoo.CONFIG, zoo.WEIGHTS) if zoo.is_ours(source) else (published.CONFIG, published.WEIGHTS)
    return artifacts.digest_json([[name, artifacts.digest_weights(zoo.existing(source / name))] for name in names])


def load_native(request: ModelRequest) -> NativeModel:
    """Loads such a model. Raises UserError where it cannot be read, or its weights do not fit its config."""
    from recallkit.models.native_model import NativeModel, build_model
    from recallkit.models.resources import memory_errors
    from recallkit.models.torch_model import choose_device, choose_dtype

    source, device = _source(request.spec), choose_device(request.device)
    with memory_errors():
        if source.is_file():
            config, weights = rwkv_file.read_rwkv_file(source)
        elif zoo.is_ours(source):
            config, weights = zoo.read_ours(source)
        else:
            config, weights = published.read_published(source)
        model = build_model(config, weights, source)
        return NativeModel(model.to(device, choose_dtype(request.dtype)).eval(), request.spec, device)


def _source(spec: str) -> Path:
    """The file or folder that a name stands for, downloaded where it is the hub's."""
    if spec.startswith(zoo.PREFIX):
        return zoo.find_shipped(spec)
    if is_published_on_hub(spec) and not Path(spec).is_dir():
        from recallkit.models.hf import hub_file

        for name in (published.WEIGHTS, published.CONFIG):
            path = hub_file(spec, name)
        return path.parent
    return Path(spec)
