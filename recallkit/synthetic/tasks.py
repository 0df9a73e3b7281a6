"""The table of synthetic tasks, and the examples that each of them makes.

A task is a function `generate(num, length, pairs, vocab, generator, *, options)` that returns
`Examples`: `num` sequences of `length` ids below `vocab`, with `pairs` facts to remember in each,
every number drawn from `generator`. A line of `TASKS` makes it known; FILE.py:FUNCTION is a task of
the user's own.
"""

from __future__ import annotations

import ast
import contextlib
import difflib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit import registry
from recallkit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

NOT_ASKED = -100
"""The target where nothing is asked: what torch's cross-entropy ignores."""

TASKS: dict[str, str] = {
    name: f"recallkit.synthetic.generators:{name}"
    for name in [
        "mqar",
        "read_twice",
        "overwriting",
        "distractors",
        "compositional",
        "two_hops",
        "copying",
        "set_disjointness",
    ]
}
"""Name -> generator."""


class Examples(NamedTuple):
    """Sequences, the questions in them and how far back the answers are: three tensors (n, t),
    int64; and the lowest id that is a value, which can be an answer."""

    ids: Tensor
    targets: Tensor
    """The answer after the ids up to and including this place were read; `NOT_ASKED` elsewhere."""
    distances: Tensor
    """Ids back from the question to where its answer stands; 0 where nothing is asked."""
    first_value: int = 0


def make_examples(
    task: str,
    *,
    num: int,
    length: int,
    pairs: int,
    vocab: int,
    seed: int,
    **options: Any,
) -> Examples:
    """Examples of a task, the same for a seed on every machine.

    `num` sequences of `length` ids below `vocab`; what `pairs` counts is said by each task, and
    `options` are those of `options_of_task`. Raises UserError for an unknown task or option, and
    where sizes do not fit.
    """
    generate = _generator_of(task)
    sizes = {"num": num, "length": length, "pairs": pairs, "vocab": vocab}
    if wrong := [name for name, size in sizes.items() if size < 1]:
        raise UserError(f"{wrong[0]} is {sizes[wrong[0]]}", where=task, remedy="choose 1 or more")
    known = options_of_task(task)
    for name, value in options.items():
        _check_option(task, name, value, known)
    import torch

    generator = torch.Generator().manual_seed(seed)
    if task in TASKS:
        examples: Examples = generate(num, length, pairs, vocab, generator, **options)
        return examples
    from recallkit.models import user

    with user.open_function(task)[0].running(task):
        value = generate(num, length, pairs, vocab, generator, **options)
    return _checked(task, value, num, length, vocab)


def options_of_task(task: str) -> dict[str, Any]:
    """The options of a task: names, and defaults (None where a user's function has none)."""
    options = {}
    for parameter in inspect.signature(_generator_of(task)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY:
            default = parameter.default
            options[parameter.name] = None if default is parameter.empty else default
    return options


def describe_tasks() -> list[tuple[str, str]]:
    """Name and description of every task: the first sentence of its generator's docstring, read
    from its file, without importing torch."""
    text = Path(__file__).with_name("generators.py").read_text(encoding="utf-8")
    descriptions = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            first, _, _ = str(ast.get_docstring(node)).partition("\n\n")
            descriptions[node.name] = " ".join(first.split())
    return [(name, descriptions[name]) for name in TASKS]


def task_of(text: str) -> tuple[str, dict[str, Any]]:
    """`mqar,filler=random` -> the task and its options. Raises UserError for what it does not
    have."""
    task, *words = text.split(",")
    known = options_of_task(task)
    options: dict[str, Any] = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            remedy = f"{task} has {', '.join(known) or 'no options'}"
            raise UserError(f"{word!r} is not an option with its value", where=text, remedy=remedy)
        options[name] = value_of(value)
        _check_option(task, name, options[name], known)
    return task, options


def value_of(word: str) -> bool | int | float | str:
    """An option's value as the command line has it: 8, 0.5, true, random."""
    for read in (int, float):
        with contextlib.suppress(ValueError):
            return read(word)
    return {"true": True, "false": False}.get(word, word)


def identify_task(task: str) -> str:
    """What determines a task's examples besides sizes and options: its name, and of
    FILE.py:FUNCTION a digest of its code."""
    from recallkit.models import user

    return user.identify_function(task) if user.is_user_function(task) else task


def answered(examples: Examples) -> Tensor:
    """The sequences with every answer behind its question, as a language model reads them: (n, t);
    (n, t + 1) if the last place asks.

    Raises UserError where an answer would replace the id of the next question.
    """
    import torch

    is_asked = examples.targets != NOT_ASKED
    ids = torch.cat([examples.ids, torch.zeros_like(examples.ids[:, :1])], dim=1)
    following = torch.where(is_asked, examples.targets, ids[:, 1:])
    if (is_asked[:, 1:] & (following != ids[:, 1:])[:, :-1]).any():
        remedy = "leave an id between questions, or make it the answer"
        raise UserError("an answer falls on the next question", remedy=remedy)
    ids = torch.cat([ids[:, :1], following], dim=1)
    return ids if is_asked[:, -1].any() else ids[:, :-1]


def _generator_of(task: str) -> Callable[..., Any]:
    """The function of a name, or of FILE.py:FUNCTION, whose file is run. Raises UserError where
    there is none."""
    from recallkit.models import user

    if user.is_user_function(task):
        return user.open_function(task)[1]
    generate: Callable[..., Any] = registry.resolve(TASKS, task, "synthetic task")
    return generate


def _check_option(task: str, name: str, value: Any, known: dict[str, Any]) -> None:
    """Raises UserError for an option that a task does not have, or a value of another type than its
    default."""
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"it has {', '.join(known) or 'none'}"
        raise UserError(f"no option {name!r}", where=task, remedy=remedy)
    if known[name] is None:
        return
    kind = type(known[name])
    types = (float, int) if kind is float else (kind,)
    if type(value) not in types:
        remedy = f"give a value of type {kind.__name__}"
        raise UserError(f"{name} is {value!r}", where=task, remedy=remedy)


def _checked(task: str, value: Any, num: int, length: int, vocab: int) -> Examples:
    """What a user's function returned as `Examples`, whose values begin with the lowest answer.

    Raises UserError where it is something else.
    """
    import torch

    parts = value[:3] if isinstance(value, tuple) else ()
    shapes = [(part.shape, part.dtype) for part in parts if isinstance(part, torch.Tensor)]
    if shapes != [((num, length), torch.int64)] * 3:
        wanted = f"return ids, targets and distances, int64 tensors of {num:,} x {length:,}"
        raise UserError("its function did not return examples", where=task, remedy=wanted)
    examples = Examples(*parts)
    is_asked = examples.targets != NOT_ASKED
    targets = examples.targets[is_asked]
    for name, ids in (("ids", examples.ids), ("targets", targets)):
        if ((ids < 0) | (ids >= vocab)).any():
            remedy = f"keep ids, and targets but {NOT_ASKED}, within 0 to vocab - 1"
            raise UserError(f"{name} are not below {vocab:,}", where=task, remedy=remedy)
    if not is_asked.any(1).all():
        remedy = f"give each one target at least that is not {NOT_ASKED}"
        raise UserError("a sequence has no question", where=task, remedy=remedy)
    return examples._replace(first_value=int(targets.min()))
