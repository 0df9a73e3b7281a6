"""The checkpoints of a run: their steps, read from their names, those that come during a run, and whether one is written."""

from __future__ import annotations

import glob
import re
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit import events
from recallkit.errors import UserError
from recallkit.models.spec import ModelSpec, list_models

if TYPE_CHECKING:
    from collections.abc import Sequence

_AFTER_WORD = re.compile(r"(?:step|checkpoint|ckpt|iter(?:ation)?|update|epoch)s?[-_=. ]*(\d+)", re.IGNORECASE)
_AT_END = re.compile(r"(?:^|[-_])(\d+)(?:\.[a-z]\w*)*$", re.IGNORECASE)
_ALONE = re.compile(r"^\D*(\d+)\D*$")
_TEMPORARY = re.compile(r"(?:^|[-_.])(?:tmp|temp|partial|incomplete)(?:$|[-_.])", re.IGNORECASE)
"""Names under which trainers write a checkpoint before they rename it: `tmp-checkpoint-500`, `checkpoint-500.tmp`."""
_MOST_STEP = 1 << 53
_NAME_IT = "name the checkpoint's step: checkpoint-500, step_500, NAME-500=PATH"


def step_of(spec: ModelSpec) -> int:
    """The training step that a checkpoint's name tells: `checkpoint-500`, `global_step1000`, `iter=20`, `OWNER/NAME@step1000`.

    Its own name comes first, then the components of its path from the last one on; a number without such a word counts where it ends
    the name or the last component, `mamba2-500`, or is the only one of it. Raises UserError if the name contains no step.
    """
    path = [part for part in reversed(spec.location.replace("@", "/").split("/")) if part]
    for parts in ([spec.name] if spec.name else [], path):
        if found := next(filter(None, [*map(_after_word, parts), *map(_without_word, parts[:1])]), None):
            return _whole(found[1], spec)
    raise UserError("no step in its name", where=spec.location, remedy=_NAME_IT)


def _after_word(name: str) -> re.Match[str] | None:
    """The last number of a name that follows a word for steps, as its group 1."""
    return next(reversed([*_AFTER_WORD.finditer(name)]), None)


def _without_word(name: str) -> re.Match[str] | None:
    """The number that ends a name or is followed by a file's suffix alone, else its only one, as its group 1."""
    return _AT_END.search(name) or _ALONE.search(name)


def _whole(digits: str, spec: ModelSpec) -> int:
    if int(digits) >= _MOST_STEP:
        raise UserError(f"{digits} is not a step", where=spec.location, remedy=_NAME_IT)
    return int(digits)


def by_step(specs: Sequence[ModelSpec]) -> dict[int, ModelSpec]:
    """The checkpoints by ascending step. Raises UserError where two have the same, or one has none."""
    found: dict[int, ModelSpec] = {}
    for spec in specs:
        other = found.setdefault(step_of(spec), spec)
        if other is not spec:
            raise UserError(f"step {step_of(spec):,} of {other.location}, too", where=spec.location, remedy="give one of them")
    return dict(sorted(found.items()))


def expand(given: ModelSpec) -> list[ModelSpec]:
    """The models that a path with `*`, `?` or `[` names; the model itself where it has none, or exists."""
    if given.is_live or not glob.has_magic(given.location) or Path(given.location).exists():
        return [given]
    if given.name is not None:
        raise UserError("one name for several checkpoints", where=given.typed(), remedy="leave the name out")
    return [replace(given, path=path, shown="") for path in sorted(glob.glob(given.location))]  # noqa: PTH207 - absolute or relative


def expand_all(given: Sequence[ModelSpec]) -> list[ModelSpec]:
    """`expand` of each. Raises UserError where a pattern names none."""
    found = [spec for each in given for spec in expand(each)]
    if not found:
        raise UserError("no such checkpoints", where=given[0].location if given else None, remedy="check the path, or give --watch")
    return list(list_models(found))


@dataclass
class Watch:
    """The checkpoints that there are and those that come: what patterns name, and the siblings of paths, whose names differ in the step.

    A checkpoint is taken when it is settled: its newest file is at least `seconds` old, or nothing in it changed since the last look. One
    without a step, of a step that another has, or with a temporary name is passed over, with a note when it is first seen.
    """

    given: Sequence[ModelSpec]
    seconds: float
    _seen: dict[str, tuple[tuple[str, int, int], ...]] = field(default_factory=dict)
    _of_step: dict[int, str] = field(default_factory=dict)
    _passed_over: set[str] = field(default_factory=set)

    def settled(self) -> list[ModelSpec]:
        """The checkpoints that are written, by ascending step."""
        found: dict[int, ModelSpec] = {}
        for spec in self._found():
            try:
                if (step := self._settled_step(spec)) is not None:
                    found[step] = spec
            except UserError as error:
                if spec.location not in self._passed_over:
                    events.note(f"{spec.location}: {error.problem} (passed over)")
                self._passed_over.add(spec.location)
        return [found[step] for step in sorted(found)]

    def state(self, spec: ModelSpec) -> tuple[tuple[str, int, int], ...]:
        """The files of a checkpoint as they were at the last look: path, size, time of change."""
        return self._seen.get(spec.location, ())

    def _found(self) -> list[ModelSpec]:
        found: dict[Path, ModelSpec] = {}
        for each in self.given:
            for spec in [*expand(each), *_siblings(each)]:
                path = Path(spec.location)
                if path not in found and path.exists():
                    found[path] = spec
        return list(list_models(list(found.values())))

    def _settled_step(self, spec: ModelSpec) -> int | None:
        """The step of a checkpoint if it is settled. Raises UserError for one that is passed over."""
        step = step_of(spec)
        if spec.name is None and _TEMPORARY.search(Path(spec.location).name):
            raise UserError("a temporary name", where=spec.location)
        if not self._is_settled(spec):
            return None
        if self._of_step.setdefault(step, spec.location) != spec.location:
            raise UserError(f"step {step:,} of {self._of_step[step]}, too", where=spec.location)
        return step

    def _is_settled(self, spec: ModelSpec) -> bool:
        path = Path(spec.location)
        try:
            files = sorted(each for each in ([path] if path.is_file() else path.rglob("*")) if each.is_file())
            facts = [(str(each), each.stat()) for each in files]
        except OSError as error:
            if not isinstance(error, FileNotFoundError | NotADirectoryError):
                raise UserError(f"cannot be read ({error.strerror})", where=path) from error
            facts = []  # a trainer removes old checkpoints
        state = tuple((name, fact.st_size, fact.st_mtime_ns) for name, fact in facts)
        before, self._seen[spec.location] = self._seen.get(spec.location), state
        newest = max((fact.st_mtime for _, fact in facts), default=time.time())
        return bool(state) and (before == state or time.time() - newest >= self.seconds)


def _siblings(given: ModelSpec) -> list[ModelSpec]:
    """The other entries of a path's folder whose names differ from its own in the number of the step alone."""
    path = Path(given.location)
    match = _after_word(path.name) or _without_word(path.name)
    if given.is_live or given.name is not None or match is None or not path.parent.is_dir():
        return []
    start, end = match.span(1)
    alike = re.compile(re.escape(path.name[:start]) + r"\d+" + re.escape(path.name[end:]))
    names = sorted(each.name for each in path.parent.iterdir() if alike.fullmatch(each.name))
    return [replace(given, path=str(path.parent / name), shown="") for name in names]
