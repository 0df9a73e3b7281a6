"""A model as a user names it, on the command line and in Python:
`NAME=PATH[,tokenizer=...,dtype=...,ablate=...,cache=...,...]`.

Parsed once, into a `ModelSpec`. NAME is what tables, charts, pages and the files of results show.
Without one the last component of the path is shown, with as many more as make it unique, and
results are filed under the path as it was given.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

from recallkit import registry
from recallkit.config import LONGEST
from recallkit.errors import UsageError
from recallkit.models.ablation import Ablation
from recallkit.models.protocol import Dtype
from recallkit.models.variants import VARIANT_OPTIONS, Variant

OPTIONS = (
    "tokenizer",
    "bos",
    "dtype",
    "context",
    "stride",
    "revision",
    "device",
    "ablate",
    *VARIANT_OPTIONS,
)
"""The options that one model may have; the options of a command are the defaults of all its
models."""

_BEFORE_OPTION = re.compile(rf",(?=(?:{'|'.join(OPTIONS)})=)")
_LIKE_OPTION = re.compile(r",([A-Za-z_-]+)=")
_NOT_IN_NAMES = "/\\:,="
_LONGEST_NAME = 80

SYNTAX = "NAME=PATH or NAME=PATH,dtype=bfloat16,context=2048"


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """A model: where it is, the name under which results show it, and options for it alone; None:
    as the command's options say.

    `path`: whatever `recallkit models` lists, or in Python a torch.nn.Module. `tokenizer`: as
    `--model-tokenizer` takes it, in Python also a tokenizer of tokenizers or transformers. `bos`:
    the token that it reads before every text, `none`, or `auto`, which is None, too: what its
    tokenizer and its configuration say. `context` and `stride` in ids. `revision`: a branch, tag or
    commit of the hub, which `OWNER/NAME@REVISION` gives, too. `ablate`: mixers whose outputs are
    replaced, as `Ablation.parse` reads them. `cache`, `state`, `weights`, `chunk`, and `protocol`
    (`once:K`): a variant, see `variants.Variant`. Raises UsageError for anything else.
    """

    path: Any
    name: str | None = None
    tokenizer: Any = None
    bos: str | None = None
    dtype: str | None = None
    context: int | None = None
    stride: int | None = None
    revision: str | None = None
    device: str | None = None
    ablate: str | None = None
    cache: str | None = None
    state: str | None = None
    weights: str | None = None
    chunk: int | None = None
    protocol: str | None = None
    shown: str = field(default="", compare=False)
    """What results call it: its name, else a short one, unique among the models of a command
    (`list_models`)."""

    def __post_init__(self) -> None:
        """Raises UsageError for fields that no model has."""
        if isinstance(self.path, os.PathLike):
            object.__setattr__(self, "path", os.fspath(self.path))
        if not self.is_live and not (isinstance(self.path, str) and self.path.strip()):
            problem = f"an object of {type(self.path).__name__} is not a model"
            if isinstance(self.path, str):
                problem = "an empty name of a model"
            remedy = "give a path, a name (see `recallkit models`) or a torch.nn.Module"
            raise UsageError(problem, where=self.name, remedy=remedy)
        if self.name is not None:
            _check_name(self.name)
        if self.dtype is not None and self.dtype not in get_args(Dtype):
            raise UsageError(
                f"dtype={self.dtype} is not one of {', '.join(get_args(Dtype))}",
                where=self.location,
                remedy="choose one",
            )
        for option in ("context", "stride"):
            value = getattr(self, option)
            if value is not None and not (type(value) is int and 1 <= value <= LONGEST):
                raise UsageError(
                    f"{option}={value} is not a number of tokens",
                    where=self.location,
                    remedy="give one such as 2048",
                )
        for option in ("bos", "ablate", "cache", "protocol"):
            value = getattr(self, option)
            if value is not None and not isinstance(value, str):
                raise UsageError(
                    f"{option}={value} is not a string",
                    where=self.location,
                    remedy=f"write {option}={str(value)!r}",
                )
        if self.revision is not None and not _is_of_hub(self.path):
            raise UsageError(
                "only models of the hub have a revision",
                where=self.location,
                remedy="give OWNER/NAME, or leave it out",
            )
        if self.ablate is not None:
            object.__setattr__(self, "ablate", str(Ablation.parse(self.ablate)))
        if self.is_live and self.variant is not None:
            raise UsageError(
                "a live model has no variants",
                where=self.location,
                remedy=f"save it, and leave out {self.variant} here",
            )
        if not self.shown:
            object.__setattr__(self, "shown", self.name or _components(self)[-1] + self._ending)

    @property
    def is_live(self) -> bool:
        """Whether it is an object of this process."""
        torch = sys.modules.get("torch")
        return torch is not None and isinstance(self.path, torch.nn.Module)

    @property
    def location(self) -> str:
        """Where it is, as `kind_of` takes it, with its revision; of a live model `live:` and its
        name or class."""
        if self.is_live:
            return f"{LIVE}{self.name or type(self.path).__name__}"
        return f"{self.path}@{self.revision}" if self.revision else str(self.path)

    @property
    def key(self) -> str:
        """What its results are filed under: its name, else where it is, its variant, and what it is
        without."""
        return self.name or self.location + self._ending

    @property
    def ablation(self) -> Ablation | None:
        """The mixers whose outputs are replaced."""
        return None if self.ablate is None else Ablation.parse(self.ablate)

    @property
    def variant(self) -> Variant | None:
        """How its cache, state or weights are compressed. Raises UsageError for options that do not
        go together."""
        variant = Variant(**{name: getattr(self, name) for name in VARIANT_OPTIONS})
        return None if variant == Variant() else variant

    def ablated(self, ablation: Ablation) -> ModelSpec:
        """The same model without some of its mixers."""
        name = None if self.name is None else f"{self.name} {ablation.shown}"
        return replace(self, ablate=str(ablation), name=name, shown="")

    @property
    def _ending(self) -> str:
        return ("" if self.variant is None else f" {self.variant}") + (
            "" if self.ablation is None else f" {self.ablation.shown}"
        )

    def typed(self) -> str:
        """Name, location, prefix, variant and ablation as they are typed, without further
        options."""
        where = self.location + ("" if self.bos is None else f",bos={self.bos}")
        where += "" if self.variant is None else self.variant.typed()
        where += "" if self.ablate is None else f",ablate={self.ablate}"
        return shlex.quote(f"{self.name}={where}" if self.name else where)


LIVE = "live:"
"""Begins the location of an object of this process."""


def list_models(*models: Any) -> tuple[ModelSpec, ...]:
    """The models that a user names: strings in the syntax above, paths, modules, `ModelSpec`s,
    sequences of these, or {NAME: model}.

    Raises UsageError for what is not a model, and for models with the same name in results.
    """
    specs = _specs(models)
    _check_different(specs)
    names = _shown_names(specs)
    return tuple(replace(spec, shown=name) for spec, name in zip(specs, names, strict=True))


def one_model(model: Any) -> ModelSpec:
    """The one model that a user names. Raises UsageError as `list_models` does."""
    [spec] = list_models(model)
    return spec


def parse_model(text: str) -> ModelSpec:
    """The model that a string in the syntax above means.

    A path that exists is taken as it is, with `=` in it. What is before the first `=` is a name
    unless it contains a slash, colon or comma, so that `./a=b` is a path. Raises UsageError for
    anything else.
    """
    path, *pieces = _BEFORE_OPTION.split(text)
    name, path = _split_name(path)
    if not path.strip():
        raise UsageError(
            "an empty name of a model",
            where=text or None,
            remedy=f"see `recallkit models`; write {SYNTAX}",
        )
    options: dict[str, Any] = {}
    for piece in pieces:
        option, _, value = piece.partition("=")
        if option in options or not value:
            raise UsageError(
                f"{option} is given twice" if value else f"{option} is empty",
                where=text,
                remedy=f"write {SYNTAX}",
            )
        options[option] = (
            int(value) if option in ("context", "stride", "chunk") and value.isdecimal() else value
        )
    for piece in (path, *(str(value) for value in options.values())):
        if (unknown := _LIKE_OPTION.search(piece)) and not _exists(piece):
            near = difflib.get_close_matches(unknown[1], OPTIONS, n=1)
            remedy = (
                f"did you mean {near[0]}?"
                if near
                else f"a model's own options are {', '.join(OPTIONS)}"
            )
            raise UsageError(f"a model has no option {unknown[1]}", where=text, remedy=remedy)
    return ModelSpec(path, name, **options)


def _specs(models: Any) -> list[ModelSpec]:
    if isinstance(models, Mapping):
        return [_as_spec(model, name) for name, model in models.items()]
    if isinstance(models, Sequence) and not isinstance(models, str):
        return [spec for model in models for spec in _specs(model)]
    return [_as_spec(models)]


def _as_spec(model: Any, name: str | None = None) -> ModelSpec:
    spec = parse_model(model) if isinstance(model, str) else model
    if not isinstance(spec, ModelSpec):
        spec = ModelSpec(spec, name)
    if name is None or spec.name == name:
        return spec
    if spec.name is not None:
        problem = f"{spec.name} and {name} name the same model"
        raise UsageError(problem, where=spec.location, remedy="give it one name")
    return replace(spec, name=name, shown="")


def _split_name(text: str) -> tuple[str | None, str]:
    """The name, if there is one, and the path of a string without options."""
    name, equals, path = text.partition("=")
    if not equals or any(char in name for char in "/\\:,") or _exists(text):
        return None, text
    return name, path


def _exists(path: str) -> bool:
    """Whether a path, or the file of FILE.py:FUNCTION, is there; False for what is not a path."""
    file, _, function = path.rpartition(":")
    is_function = file.endswith(".py") and function.isidentifier()
    exists = os.path.exists  # it is False for names that no system takes
    return exists(path) or (is_function and exists(file))


def _check_name(name: Any) -> None:
    """Raises UsageError for a name that could not be shown, typed or part of a file's name."""
    is_good = (
        isinstance(name, str)
        and name.isprintable()
        and name == name.strip()
        and 0 < len(name) <= _LONGEST_NAME
    )
    if not is_good or any(char in name for char in _NOT_IN_NAMES) or name.startswith((".", "-")):
        problem = f"{name!r} cannot be a model's name"
        remedy = (
            f"give up to {_LONGEST_NAME} printable characters without {' '.join(_NOT_IN_NAMES)}; "
            "a path with = begins with ./"
        )
        raise UsageError(problem, where="NAME", remedy=remedy)


def _is_of_hub(path: Any) -> bool:
    return (
        isinstance(path, str)
        and registry.may_be_hub_id(path)
        and "@" not in path
        and not _exists(path)
    )


def _components(spec: ModelSpec) -> list[str]:
    """The parts of a location of which a short name is made."""
    if spec.is_live:
        return [type(spec.path).__name__]
    parts = [part for part in Path(spec.location).parts if part not in ("/", ".")]
    if not parts or parts[-1] == "..":
        parts = [part for part in Path(spec.location).resolve().parts if part != "/"]
    return parts or [spec.location]


def _shown_names(specs: Sequence[ModelSpec]) -> list[str]:
    """A different name for each model: those that users gave, and the last components of the
    others' paths, as many as tell them apart.

    Only variants of one model have the same components: `a/hf` and `b/hf cache int4`.
    """
    components = [_components(spec) for spec in specs]
    used = [1] * len(specs)
    while True:
        short = []
        for spec, parts, number in zip(specs, components, used, strict=True):
            short.append(spec.name or "/".join(parts[-number:]))
        names = [spec.name or one + spec._ending for spec, one in zip(specs, short, strict=True)]
        locations: dict[str, set[str]] = {}
        for spec, one in zip(specs, short, strict=True):
            locations.setdefault(one, set()).add(spec.location)
        repeated = [place for place, name in enumerate(names) if names.count(name) > 1]
        ambiguous = [place for place, one in enumerate(short) if len(locations[one]) > 1]
        unnamed = [place for place, spec in enumerate(specs) if spec.name is None]
        clashing = [place for place in unnamed if place in repeated or place in ambiguous]
        longer = [place for place in clashing if used[place] < len(components[place])]
        for place in longer:
            used[place] += 1
        if longer:
            continue
        twice = [place for place in clashing if place in repeated]
        if twice:
            where, remedy = specs[twice[-1]].location, f"give each a name: {SYNTAX}"
            raise UsageError("a model is named twice", where=where, remedy=remedy)
        return names


def _check_different(specs: Sequence[ModelSpec]) -> None:
    """Raises UsageError for two models whose results would be filed under the same name."""
    first: dict[str, ModelSpec] = {}
    for spec in specs:
        other = first.setdefault(spec.key, spec)
        if other is spec:
            continue
        if spec.name is not None or other.name is not None:
            raise UsageError(
                "two models have this name", where=spec.key, remedy="give each a different name"
            )
        remedy = (
            "name each once" if spec == other else "give each a name: a=PATH,OPTIONS b=PATH,OPTIONS"
        )
        raise UsageError("a model is named twice", where=spec.location, remedy=remedy)
