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

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.models.spec import ModelSpec

# The last number behind such a word of a path; or the number at its end, before any extensions.
_AFTER_WORD = re.compile(
    r".*(?:step|checkpoint|ckpt|iter(?:ation)?|update|epoch)s?[-_=. ]*(\d{1,15})(?!\d)",
    re.IGNORECASE,
)
_AT_END = re.compile(r"(?:.*[-_/@])?(\d{1,15})(?:\.[a-z]\w*)*/?$", re.IGNORECASE)
_TEMPORARY = re.compile(r"(?:^|[-_.])(?:tmp|temp|partial|incomplete)(?:$|[-_.])", re.IGNORECASE)
"""Names under which trainers write a checkpoint before they rename it: `tmp-checkpoint-500`,
`checkpoint-500.tmp`."""


def step_of(spec: ModelSpec) -> int:
    """The training step that a checkpoint's name tells: `checkpoint-500`, `global_step1000`,
    `iter=20`, `OWNER/NAME@step1000`.

    Its own name comes before its path; a number without such a word counts where it ends one of
    these, `mamba2-500`. Raises UserError if there is no step.
    """
    for text in (spec.name or "", spec.location):
        if match := _AFTER_WORD.match(text) or _AT_END.match(text):
            return int(match[1])
    remedy = "name the checkpoint's step: checkpoint-500, step_500, NAME-500=PATH"
    raise UserError("no step in its name", where=spec.location, remedy=remedy)


def by_step(specs: Sequence[ModelSpec]) -> dict[int, ModelSpec]:
    """The checkpoints by ascending step. Raises UserError where two have the same, or one has
    none."""
    steps: dict[int, ModelSpec] = {}
    for spec in specs:
        step = step_of(spec)
        if step in steps:
            problem = f"step {step:,} of {steps[step].location}, too"
            raise UserError(problem, where=spec.location, remedy="give one of them")
        steps[step] = spec
    return dict(sorted(steps.items()))


def expand(specs: Sequence[ModelSpec]) -> list[ModelSpec]:
    """The models, and in place of each path with `*`, `?` or `[` those that it matches. Raises
    UserError where there are none."""
    models = [model for spec in specs for model in _matches(spec)]
    if not models:
        where = specs[0].location
        raise UserError("no such checkpoints", where=where, remedy="check the path")
    return models


def _matches(spec: ModelSpec) -> list[ModelSpec]:
    """The models that a pattern matches; the model itself where it is none."""
    if spec.is_live or not glob.has_magic(spec.location) or Path(spec.location).exists():
        return [spec]
    paths = sorted(glob.glob(spec.location))  # noqa: PTH207 - absolute or relative
    complete = [path for path in paths if not _TEMPORARY.search(Path(path).name)]
    if len(complete) < len(paths):
        number = counted(len(paths) - len(complete), "temporary name")
        events.note(f"{spec.location}: {number} skipped")
    return [replace(spec, path=path, shown="") for path in complete]
