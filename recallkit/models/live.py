"""A live model: a torch.nn.Module of this process, a transformers model among them, as Python's
functions take it.

It is scored where it is and in the precision that it has, in evaluation mode, and left as it was;
where another device or precision is asked for, or some of its mixers are replaced, a copy of it is.
A digest of its parameters, buffers and code identifies it, so that its scores are reused until it
changes.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import inspect
import sys
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.models.devices import choose_device, choose_dtype, is_balanced
from recallkit.models.protocol import ModelFacts
from recallkit.storage import hashing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import CodeType

    import torch

    from recallkit.models.plan import ModelPlan
    from recallkit.models.protocol import ScoringModel
    from recallkit.models.spec import ModelSpec
    from recallkit.options import WorkerOptions

_LIBRARIES = ("torch", "transformers")
"""Packages whose classes are known by their names."""


def identify(plan: ModelPlan) -> str:
    """Digest of a module's parameters, buffers, plain attributes and configuration, and of the code
    of its classes.

    Device and precision are not part of it.
    """
    module = _module(plan)
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    values = [[name, *_describe(tensor)] for name, tensor in tensors.items()]
    modules = module.named_modules()
    parts = [[name, _name_of(type(part)), _plain_attributes(part)] for name, part in modules]
    classes = {base for part in module.modules() for base in type(part).__mro__}
    classes.discard(object)
    own = [base for base in classes if base.__module__.partition(".")[0] not in _LIBRARIES]
    code = sorted([_name_of(base), _code_of(base)] for base in own)
    return hashing.digest_json([values, parts, code, _configuration(module)])


def load(plan: ModelPlan) -> ScoringModel:
    """The module as a scoring model, checked as a user's module is. Raises UserError for one that
    would give wrong scores."""
    module = _module(plan)
    device = _device_of(module) if plan.device == "auto" else choose_device(plan.device)
    dtype = choose_dtype(plan.dtype)
    if (_device_of(module), _dtype_of(module)) != (
        device,
        plan.dtype,
    ) or plan.ablation is not None:
        module = copy.deepcopy(module)
    from recallkit.models.language_model import LanguageModel

    if isinstance(module, LanguageModel):
        from recallkit.models.native_model import NativeModel

        return NativeModel(module.to(device, dtype).eval(), plan.location, device)
    if not _is_transformers(module):
        from recallkit.models.user import UserCode
        from recallkit.models.user_models import UserModule

        return UserModule(module, UserCode(), plan, device)
    from recallkit.models.transformers_model import TransformersModel

    return TransformersModel(module.to(device, dtype).eval(), plan.location, device)


def facts(plan: ModelPlan) -> ModelFacts:
    """Precision of a module's parameters, and vocabulary and context of a transformers model."""
    module = _module(plan)
    known = ModelFacts(dtype=_dtype_of(module))
    if not _is_transformers(module):
        return known
    from recallkit.models.transformers_model import context_length, text_model

    model = text_model(module, plan.location)
    context = context_length(model.config.get_text_config(), model.base_model)
    vocab_size = int(model.get_output_embeddings().weight.shape[0])
    return dataclasses.replace(known, vocab_size=vocab_size, max_length=context)


def check_alone(model: ModelSpec, workers: WorkerOptions) -> None:
    """Raises UserError where several processes are to run a live model, which is in this one alone,
    or one spread over all devices."""
    if workers.workers == 1 and workers.engine == "local":
        return
    if model.is_live:
        problem = "a live model runs only in this process"
        raise UserError(
            problem,
            where=model.shown,
            remedy="leave out workers and engine, or save it and give its path",
        )
    if is_balanced(str(model.device or getattr(workers, "device", ""))):
        problem = "device=balanced spreads a model over all devices, for one process"
        raise UserError(problem, where=model.shown, remedy="leave out workers and engine")


@contextlib.contextmanager
def evaluating(*modules: Any) -> Iterator[None]:
    """A block in which modules (or None) are in evaluation mode; after it, all of their modules are
    in the mode they were in."""
    parts = [part for module in modules if module is not None for part in module.modules()]
    training = [part for part in parts if part.training]
    try:
        yield
    finally:
        for part in training:
            part.training = True


def _module(plan: ModelPlan) -> Any:
    if plan.module is None:
        raise UserError(
            "a live model exists only in the process that made it",
            where=plan.location,
            remedy="save it and give its path",
        )
    return plan.module


def _is_transformers(module: torch.nn.Module) -> bool:
    transformers = sys.modules.get("transformers")
    return transformers is not None and isinstance(module, transformers.PreTrainedModel)


def _device_of(module: torch.nn.Module) -> torch.device:
    """Where its first parameter or buffer is; the CPU for a module without any."""
    import torch

    first = next(
        (tensor for tensors in (module.parameters(), module.buffers()) for tensor in tensors),
        None,
    )
    return torch.device("cpu") if first is None else first.device


def _dtype_of(module: torch.nn.Module) -> str:
    """The precision of its first parameter that has one."""
    first = next((tensor for tensor in module.parameters() if tensor.is_floating_point()), None)
    return "float32" if first is None else str(first.dtype).removeprefix("torch.")


def _describe(tensor: torch.Tensor) -> list[Any]:
    digest = hashing.digest_bytes(_bytes_of(tensor))
    return [str(tensor.dtype), list(tensor.shape), digest]


def _bytes_of(tensor: torch.Tensor) -> bytes:
    import torch

    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _plain_attributes(part: torch.nn.Module) -> list[list[Any]]:
    """Numbers, strings and tuples of these that a module keeps, such as its number of heads."""
    plain = (bool, int, float, str, type(None))
    attributes = []
    for name, value in sorted(vars(part).items()):
        values = value if isinstance(value, list | tuple) else [value]
        is_public = not name.startswith("_") and name != "training"
        if is_public and all(isinstance(number, plain) for number in values):
            attributes.append([name, repr(value)])
    return attributes


def _configuration(module: torch.nn.Module) -> Any:
    """The configuration of a transformers model, without what loading or reading it changes."""
    from recallkit.models.transformers_model import EXACT_SETTINGS

    if not _is_transformers(module):
        return None
    ignored = {"_name_or_path", "transformers_version", "dtype", "torch_dtype", *EXACT_SETTINGS}
    config: Any = module.config
    entries = sorted(config.to_dict().items())
    return {name: repr(value) for name, value in entries if name not in ignored}


def _name_of(base: type) -> str:
    return f"{base.__module__}.{base.__qualname__}"


def _code_of(base: type) -> list[Any]:
    """The compiled code of a class's methods."""
    code = []
    for name, value in sorted(vars(base).items()):
        function = getattr(value, "fget", None) or getattr(value, "__func__", value)
        method = inspect.unwrap(function)
        if hasattr(method, "__code__"):
            code.append([name, _digest_code(method.__code__)])
    return code


def _digest_code(code: CodeType) -> str:
    """Of what code does, not of where it is: functions within it included."""
    constants: list[Any] = []
    for value in code.co_consts:
        if hasattr(value, "co_code"):
            constants.append(_digest_code(value))
        else:  # the order of a frozenset changes from run to run
            is_set = isinstance(value, frozenset)
            constants.append(sorted(map(repr, value)) if is_set else repr(value))
    return hashing.digest_json(
        [code.co_code.hex(), list(code.co_names), list(code.co_varnames), constants],
    )
