"""The checkpoints of a run, and their steps, which are read from their names."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import events
from recallkit.display.cells import counted
from recallkit.errors import UserError
from recallkit.models.spec import ModelSpec, list_models

if TYPE_CHECKING:
    from collections.abc import Sequence

_AFTER_WORD = re.compile(
    r".*(?:step|checkpoint|ckpt|iter(?:ation)?|update|epoch)s?[-_=. ]*(\d{1,15})(?!\d)",
    re.IGNORECASE,
)
_AT_END = re.compile(r"(?:.*[-_])?(\d{1,15})(?:\.[a-z]\w*)*$", re.IGNORECASE)
_ALONE = re.compile(r"\D*(\d{1,15})\D*$")
_TEMPORARY = re.compile(r"(?:^|[-_.])(?:tmp|temp|partial|incomplete)(?:$|[-_.])", re.IGNORECASE)
"""Names under which trainers write a checkpoint before they rename it: `tmp-checkpoint-500`,
`checkpoint-500.tmp`."""


def step_of(spec: ModelSpec) -> int:
    """The training step that a checkpoint's name tells: `checkpoint-500`, `global_step1000`,
    `iter=20`, `OWNER/NAME@step1000`.

    Its own name comes first, then the components of its path from the last one on; a number without
    such a word counts where it ends the name or the last component, `mamba2-500`, or is the only
    one of it. Raises UserError if the name contains no step.
    """
    components = [part for part in reversed(spec.location.replace("@", "/").split("/")) if part]
    for parts in ([spec.name or ""], components):
        after_words = [_AFTER_WORD.match(part) for part in parts]
        for match in [*after_words, _AT_END.match(parts[0]), _ALONE.match(parts[0])]:
            if match is not None:
                return int(match[1])
    raise UserError(
        "no step in its name",
        where=spec.location,
        remedy="name the checkpoint's step: checkpoint-500, step_500, NAME-500=PATH",
    )


def by_step(specs: Sequence[ModelSpec]) -> dict[int, ModelSpec]:
    """The checkpoints by ascending step. Raises UserError where two have the same, or one has
    none."""
    steps: dict[int, ModelSpec] = {}
    for spec in specs:
        step = step_of(spec)
        if step in steps:
            raise UserError(
                f"step {step:,} of {steps[step].location}, too",
                where=spec.location,
                remedy="give one of them",
            )
        steps[step] = spec
    return dict(sorted(steps.items()))


def is_pattern(spec: ModelSpec) -> bool:
    """Whether a path has `*`, `?` or `[`, and is not there itself."""
    return not spec.is_live and glob.has_magic(spec.location) and not Path(spec.location).exists()


def expand(pattern: ModelSpec) -> list[ModelSpec]:
    """The models that a pattern names; the model itself where it is none."""
    if not is_pattern(pattern):
        return [pattern]
    if pattern.name is not None:
        problem = "one name for several checkpoints"
        raise UserError(problem, where=pattern.typed(), remedy="leave the name out")
    paths = sorted(glob.glob(pattern.location))  # noqa: PTH207 - absolute or relative
    complete = [path for path in paths if not _TEMPORARY.search(Path(path).name)]
    if len(complete) < len(paths):
        skipped = counted(len(paths) - len(complete), "temporary name")
        events.note(f"{pattern.location}: {skipped} skipped")
    return [replace(pattern, path=path, shown="") for path in complete]


def expand_all(patterns: Sequence[ModelSpec]) -> list[ModelSpec]:
    """`expand` of each. Raises UserError where a pattern names none."""
    specs = [spec for pattern in patterns for spec in expand(pattern)]
    if not specs:
        raise UserError(
            "no such checkpoints",
            where=patterns[0].location,
            remedy="check the path",
        )
    return list(list_models(specs))
