"""Every option that a remedy names is one of the command that it names, else of all commands that
can end with that error."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest
import typer

from recallkit import cli
from recallkit.commands import COMMANDS
from tests.conftest import ROOT
from tests.test_structure import tree_of

GROUP = typer.main.get_command(cli.app)
OPTIONS = {
    name: {flag for parameter in GROUP.get_command(None, name).params for flag in parameter.opts}
    for name in COMMANDS
}

SCORING = ("score", "gap", "track", "intervene", "ablate")
BY_PACKAGE = {
    "text": ("count", "slice", "profile"),
    "counting": ("count",),
    "slicing": ("slice", "profile"),
    "profiling": ("profile",),
    "models": (*SCORING, "eval-recall", "mqar"),
    "scoring": SCORING,
    "measure": ("gap",),
    "attribution": ("gap",),
    "intervening": ("intervene",),
    "ablation": ("ablate",),
    "tracking": ("track",),
    "recall": ("eval-recall",),
    "mqar": ("mqar",),
    "training": ("train",),
    "papers/arithmetic.py": ("published",),
    "models/torch_model.py": SCORING,
    "models/transformers_model.py": SCORING,
    "models/paired.py": ("gap",),
    "counting/table.py": ("slice", "profile", *SCORING),
}
"""The commands whose errors those of a package or module are; those of other packages are of any
command."""

NOUNS = ("models", "sources", "tasks", "tokens")
"""Commands whose names are ordinary words of a remedy."""

OF_OTHERS = ("--help", "--upgrade", "--long", "--append-eod")
"""Of every command, and of pip, zstd and Megatron-LM."""


def remedies() -> Iterator[tuple[str, int, str]]:
    """Module, line and text of all remedies: strings of `remedy=` and `remedy = ...`, `{}` for what
    is filled in."""
    for path in sorted((ROOT / "recallkit").rglob("*.py")):
        for node in ast.walk(tree_of(path)):
            values = [each.value for each in getattr(node, "keywords", ()) if each.arg == "remedy"]
            if isinstance(node, ast.Assign | ast.AnnAssign):
                named = node.targets if isinstance(node, ast.Assign) else [node.target]
                values += [
                    node.value
                    for target in named
                    if isinstance(target, ast.Name) and target.id == "remedy" and node.value
                ]
            for value in values:
                for text in texts(value):
                    yield path.relative_to(ROOT / "recallkit").as_posix(), value.lineno, text


def texts(node: ast.expr) -> list[str]:
    """The strings that an expression can be."""
    if isinstance(node, ast.IfExp):
        return texts(node.body) + texts(node.orelse)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return [node.value]
    if isinstance(node, ast.JoinedStr):
        return [
            "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        ]
    return []


def wrong_options(module: str, remedy: str) -> list[str]:
    """The options in a remedy that no command of its own has."""
    wrong, named, before, package = (
        [],
        None,
        "",
        BY_PACKAGE.get(module, BY_PACKAGE.get(module.split("/")[0], ())),
    )
    for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*|[\w-]+|[,;)]", remedy):
        is_command = word in OPTIONS and (word not in NOUNS or before == "recallkit")
        # a command is named for its clause
        named, before = (
            word if is_command else None if word in ",;)" else named,
            word,
        )
        if word.startswith("--") and word not in OF_OTHERS:
            of = (named,) if named else package
            has = [word in OPTIONS[name] for name in of] or [
                any(word in flags for flags in OPTIONS.values())
            ]
            wrong += [] if all(has) else [word]
    return wrong


def test_remedies_name_options_of_their_commands():
    found = list(remedies())
    assert len([text for _, _, text in found if "--" in text]) > 60
    wrong = {
        f"{module}:{line}: {text}": options
        for module, line, text in found
        if (options := wrong_options(module, text))
    }
    assert not wrong, "\n".join(f"{place} {options}" for place, options in wrong.items())


@pytest.mark.parametrize(
    ("module", "remedy", "wrong"),
    [
        ("text/x.py", "give another --seq-len", ["--seq-len"]),
        ("slicing/x.py", "give another --seq-len", []),
        (
            "scoring/x.py",
            "slice with a smaller --seq-len, or give another --seq-len",
            ["--seq-len"],
        ),
        ("scoring/x.py", "run `recallkit score M --slices D`", []),
        ("storage/x.py", "give --nothing", ["--nothing"]),
    ],
)
def test_what_is_wrong(module, remedy, wrong):
    assert wrong_options(module, remedy) == wrong
