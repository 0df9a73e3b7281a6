"""Models that flash-linear-attention implements: its classes are registered with transformers when a config.json asks for one."""

from __future__ import annotations

import os
import sys
import warnings
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.errors import UserError

if TYPE_CHECKING:
    import torch

_DELTA = ("comba", "delta_net", "gated_deltanet", "gated_deltaproduct", "kda", "precond_gated_deltanet", "precond_kda")
_GATED = ("abc", "gla", "gsa", "hgrn", "hgrn2", "lightnet", "linear_attn", "mesa_net", "retnet", "rodimus", "rwkv6", "rwkv7")
_MAMBA = ("log_linear_mamba2", "mamba3", "samba")
_ATTENTION = ("deltaformer", "forgetting_transformer", "mla", "moba", "nsa", "parallax", "path_attn", "stickbreaking_attn", "transformer")
_OTHER = ("cat", "cyclic_flow_attention", "mom", "raven", "wall_transformer", "yoco")

MODEL_TYPES = frozenset((*_DELTA, *_GATED, *_MAMBA, *_ATTENTION, *_OTHER))
"""Values of `model_type` that fla 0.6 has, without those that transformers has, too: for these, transformers' own classes are used."""

_REMEDY = f"install it: {config.installing('fla')}"


def register(model_type: str, spec: str, device: torch.device) -> None:
    """Registers fla's classes where a config's `model_type` needs them.

    Raises UserError where the package is missing, has no such model, or there is no GPU: its forward passes are Triton kernels.
    """
    from transformers import CONFIG_MAPPING

    if model_type not in MODEL_TYPES or model_type in CONFIG_MAPPING:
        restore_own_classes()
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import fla.models  # noqa: F401 - registers its classes
    except ImportError as error:
        problem = f"{model_type} is a model of flash-linear-attention, which is not installed ({error})"
        raise UserError(problem, where=spec, remedy=_REMEDY) from error
    restore_own_classes()
    if model_type not in CONFIG_MAPPING:
        raise UserError(f"the installed flash-linear-attention has no model {model_type}", where=spec, remedy=_REMEDY)
    if device.type == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        problem = f"{model_type} is computed by kernels of flash-linear-attention, which need a GPU"
        raise UserError(problem, where=spec, remedy="use --device cuda on a machine with one")


def restore_own_classes() -> None:
    """Gives transformers back the names that importing fla takes from it (mamba, mamba2 ...), whoever imported it."""
    if "fla.models" in sys.modules:
        from transformers import CONFIG_MAPPING

        for name in set(CONFIG_MAPPING._extra_content) & set(CONFIG_MAPPING._mapping):
            del CONFIG_MAPPING._extra_content[name]
