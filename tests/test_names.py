"""How the program names things: nouns of the field, and no comprehension within a comprehension."""

from __future__ import annotations

import ast

import pytest

from tests.conftest import ROOT

DIALECT = frozenset(
    "found given made asked told held kept seen named whole of each Look Shown frozen".split()
)
"""Names that say how something came about, or nothing, in place of what it is."""
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def name_of(node: ast.AST) -> str:
    """What a node names: a variable, argument, attribute, function or class."""
    if isinstance(node, ast.Name | ast.Attribute) and not isinstance(node.ctx, ast.Store):
        return ""
    names = ("id", "arg", "attr", "name")
    return str(next((getattr(node, name) for name in names if hasattr(node, name)), ""))


def faults(text: str) -> list[str]:
    """The names of the dialect that a module gives, and its nested comprehensions, by line."""
    tree = ast.parse(text)
    lists = [node for node in ast.walk(tree) if isinstance(node, ast.arguments)]
    # A part and the whole of it are nouns.
    wholes = [names for names in lists if "part" in [name.arg for name in names.args]]
    allowed = {id(name) for names in wholes for name in names.args}
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) or id(node) in allowed:
            continue
        if name_of(node).strip("_") in DIALECT:
            wrong.append(f"{node.lineno}: {name_of(node)}")
        inner = [part for part in ast.walk(node) if part is not node]
        if isinstance(node, COMPREHENSIONS) and any(isinstance(x, COMPREHENSIONS) for x in inner):
            wrong.append(f"{node.lineno}: a comprehension within a comprehension")
    return wrong


@pytest.mark.parametrize(
    "text",
    [
        "found = 1",
        "for each in rows: pass",
        "def f(given): pass",
        "self._kept = 1",
        "class Look: pass",
        "def told(): pass",
        "lambda of: 1",
        "[[x for x in row] for row in rows]",
    ],
)
def test_the_dialect_is_recognised(text):
    assert len(faults(text)) == 1


def test_what_others_named_may_be_used():
    assert faults("f(found=rows.found, each=1)") == []
    assert faults("def ratio(part, whole): pass") == []


def test_no_module_has_such_a_name():
    paths = [*(ROOT / "recallkit").rglob("*.py"), *(ROOT / "kernels").rglob("*.py")]
    wrong = []
    for path in paths:
        wrong += [f"{path.relative_to(ROOT)}:{fault}" for fault in faults(path.read_text("utf-8"))]
    assert not wrong, "\n".join(wrong)
