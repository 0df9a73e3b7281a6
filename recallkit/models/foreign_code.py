"""Code that a checkpoint's config names beside that of its own repository, refused unasked.

transformers runs the code of a repository (`auto_map`) only where that is allowed. Two further ways
ask nobody. An implementation of attention or of experts can be a kernel of the hub,
OWNER/NAME@REVISION:FUNCTION, which the package `kernels` downloads and imports; and
compressed-tensors imports the file of a format PATH:NAME. Some families and quantisations take a
kernel of the hub wherever that package is installed, without a word in their config.
"""

from __future__ import annotations

import re
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_PACKAGE = "kernels"
_ALLOW = "or read that code, then allow it with --trust-remote-code"


class _Entry(NamedTuple):
    """Entries of a config whose value can be code."""

    keys: re.Pattern[str]
    """Of the entry, or of a mapping that it is in."""
    values: re.Pattern[str]
    problem: str
    remedy: str
    packages: tuple[str, ...] = ()
    """Those that have the code: where one is installed, nothing is fetched."""


_IMPLEMENTATION = re.compile(r"\w*_implementation\w*|(\w+_)?kernels?(_\w+)?")
_FROM_HUB = "code from the hub, which is never run unasked"
_REMOVE = f"remove it, and transformers' own function is used, {_ALLOW}"
_ENTRIES = (
    _Entry(_IMPLEMENTATION, re.compile("/"), _FROM_HUB, _REMOVE),
    _Entry(
        _IMPLEMENTATION,
        re.compile("flash_attention"),
        f"without the package flash-attn, {_FROM_HUB}",
        _REMOVE,
        ("flash_attn", "flash_attn_interface"),
    ),
    _Entry(
        re.compile("format|type|compressor|observer"),
        re.compile(":"),
        "code in a file, which is never run unasked",
        f"give the model before it was quantised, {_ALLOW}",
    ),
)

_TAKE_KERNELS = {
    "model_type": {"mra", "rwkv", "yoso"},
    "quant_method": {"eetq", "fbgemm_fp8", "fp8", "metal", "mxfp4", "nvfp4"},
}
"""Values for which transformers takes kernels of the hub by default, as it does for GGUF files."""


def named_code(config: Mapping[str, Any]) -> list[str]:
    """The code that a config names beside that of its repository, as it names it."""
    return [value for _, value, _ in _find(config)]


def check_code(config: Mapping[str, Any], spec: str) -> None:
    """Raises UserError for a config that names code."""
    for path, value, entry in _find(config):
        problem = f"{'.'.join(path)} in its config.json is {value!r}: {entry.problem}"
        raise UserError(problem, where=spec, remedy=entry.remedy)


def find_kernels(*, allowed: bool) -> None:
    """Makes transformers look for the package `kernels` again, and take it for missing unless it is
    `allowed`."""
    from transformers.utils import is_kernels_available

    forget: Any = getattr(is_kernels_available, "cache_clear", None)
    if forget is not None:
        forget()
    if allowed:
        return
    imported = sys.modules.get(_PACKAGE)
    sys.modules[_PACKAGE] = None  # type: ignore[assignment]  # nobody finds it
    try:
        is_kernels_available()  # which remembers its answer
    finally:
        del sys.modules[_PACKAGE]
        if imported is not None:
            sys.modules[_PACKAGE] = imported


def explain_kernels(config: Mapping[str, Any], spec: str) -> str | None:
    """A note for a model for which transformers would take kernels of the hub, and None for others.

    None, too, where the package `kernels` is missing: a folder of this name is not one.
    """
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        return None
    entries = ((path[-1], value) for path, value in _strings(config))
    reasons = [f"{key} {value}" for key, value in entries if value in _TAKE_KERNELS.get(key, ())]
    if spec.lower().endswith(".gguf"):
        reasons.append("GGUF file")
    if not reasons:
        return None
    unasked = "kernels from the hub, which are never run unasked"
    functions = f"transformers' own functions are used in place of {unasked} ({reasons[0]})"
    return f"{spec}: {functions}; --trust-remote-code allows them"


def _find(config: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str, _Entry]]:
    for path, value in _strings(config):
        for entry in _ENTRIES:
            is_named = entry.values.search(value) and any(map(entry.keys.fullmatch, path))
            if is_named and not any(map(find_spec, entry.packages)):
                yield path, value, entry


def _strings(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every text in nested mappings and lists, with the keys that lead to it."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from _strings(inner, (*path, key))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, path)
