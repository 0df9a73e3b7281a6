"""What no module of the program does, read from its syntax: no pickle, no code from data, no SQL
from data, no shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.test_structure import ROOT, python_files, tree_of

FILES = [*python_files("recallkit"), *python_files("kernels"), *python_files("examples")]
USERS_OWN = ROOT / "recallkit" / "models" / "user.py"
"""Runs the file that the user named on the command line, and nothing else."""
PAGES = ROOT / "recallkit" / "report" / "markup.py"
"""Renders templates of the package, and no others."""

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "joblib",
    "subprocess",
    "pty",
    "jinja2",
    "yaml",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "yaml.load",
    "yaml.unsafe_load",
}


OURS = ("PackageLoader('recallkit', 'data')", "True")


@cache
def nodes_of(path: Path) -> list[ast.AST]:
    return list(ast.walk(tree_of(path)))


def calls(path: Path) -> Iterator[tuple[str, ast.Call]]:
    for node in nodes_of(path):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(call: ast.Call, name: str) -> str | None:
    return next((ast.unparse(given.value) for given in call.keywords if given.arg == name), None)


def problems(path: Path) -> list[str]:
    """What a file does that none may do, each with its line."""
    found: list[str] = []
    for node in nodes_of(path):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        forbidden = FORBIDDEN_MODULES - {"pickle"} - ({"jinja2"} if path == PAGES else set())
        found += [
            f"{node.lineno}: imports {name}" for name in names if name.split(".")[0] in forbidden
        ]
        if isinstance(node, ast.ImportFrom) and node.module == "pickle":
            found.append(f"{node.lineno}: imports from pickle")
        if (
            isinstance(node, ast.Attribute)
            and ast.unparse(node.value) == "pickle"
            and node.attr != "UnpicklingError"
        ):
            found.append(f"{node.lineno}: pickle.{node.attr}")
    for name, call in calls(path):
        if name in FORBIDDEN_CALLS and path != USERS_OWN and name != "re.compile":
            found.append(f"{call.lineno}: {name}")
        if name.endswith("from_string") or name == "Template":
            found.append(f"{call.lineno}: a template that is no file of ours")
        if name == "Environment" and (keyword(call, "loader"), keyword(call, "autoescape")) != OURS:
            found.append(f"{call.lineno}: templates of others, or that do not escape")
        if name.endswith("torch.load") and keyword(call, "weights_only") != "True":
            found.append(f"{call.lineno}: torch.load without weights_only=True")
        if name in ("np.load", "numpy.load") and keyword(call, "allow_pickle") not in (
            None,
            "False",
        ):
            found.append(f"{call.lineno}: {name} with pickles")
        if keyword(call, "shell") not in (None, "False"):
            found.append(f"{call.lineno}: a shell")
        if (
            name.endswith("apply_chat_template")
            or (keyword(call, "apply_chat_template") or "False") != "False"
        ):
            found.append(f"{call.lineno}: renders a template")
        if name.rpartition(".")[2] in ("execute", "executemany", "sql") and not is_fixed_sql(call):
            found.append(f"{call.lineno}: SQL that is no fixed text: {ast.unparse(call)[:60]}")
    return found


def is_fixed_sql(call: ast.Call) -> bool:
    text = call.args[0]
    if isinstance(text, ast.Constant):
        return isinstance(text.value, str)
    # Of which file is often a variable's to say: it is one of the program's own all the same.
    return isinstance(text, ast.Call) and ast.unparse(text.func) in ("db.query", "query")


def test_no_module_runs_what_it_reads():
    assert {str(path.relative_to(ROOT)): found for path in FILES if (found := problems(path))} == {}


def test_templates_escape_all_that_they_write():
    templates = sorted((ROOT / "recallkit/data").glob("*.html"))
    assert len(templates) == 3
    for path in templates:
        assert not re.search(r"\|\s*safe\b|autoescape|Markup", path.read_text(encoding="utf-8")), (
            path
        )


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.load(f)",
        "from pickle import loads",
        "import dill",
        "import subprocess",
        "import jinja2",
        "environment.from_string(text)",
        "Environment(loader=PackageLoader('recallkit', 'data'))",
        "Environment(loader=FileSystemLoader(folder), autoescape=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path, allow_pickle=True)",
        "eval(text)",
        "exec(text)",
        "os.system(text)",
        "run(text, shell=True)",
        "tokenizer.apply_chat_template(messages)",
        'connection.execute(f"SELECT * FROM {name}")',
        'connection.sql("SELECT " + name)',
        "connection.execute(text)",
    ],
)
def test_each_of_these_would_be_seen(tmp_path, line):
    path = tmp_path / "module.py"
    path.write_text(line)
    assert problems(path)


def test_code_of_checkpoints_is_off_wherever_it_can_be_switched_on():
    switches = 0
    for path in python_files("recallkit"):
        for node in nodes_of(path):
            if isinstance(node, ast.FunctionDef):
                given = [*node.args.posonlyargs, *node.args.args]
                pairs = list(
                    zip(
                        given[len(given) - len(node.args.defaults) :],
                        node.args.defaults,
                        strict=True,
                    )
                )
                pairs += [
                    (a, d)
                    for a, d in zip(node.args.kwonlyargs, node.args.kw_defaults, strict=True)
                    if d is not None
                ]
                defaults = [
                    ast.unparse(default)
                    for argument, default in pairs
                    if argument.arg == "trust_remote_code"
                ]
            elif (
                isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "trust_remote_code"
            ):
                declared = (
                    isinstance(node.value, ast.Call) and ast.unparse(node.value.func) == "option"
                )
                defaults = [
                    ast.unparse(node.value.args[1] if declared else node.value)
                    if node.value
                    else "none"
                ]
            else:
                continue
            switches += len(defaults)
            assert set(defaults) <= {"False"}, f"{path}:{node.lineno}"
    assert switches >= 3, "an option, a request, a function: are they called otherwise now?"


def test_code_of_tokenizers_is_never_run():
    """They are loaded with the switch off in so many words: left out, transformers asks on the
    terminal."""
    [call] = [
        call
        for name, call in calls(ROOT / "recallkit/text/tokenizers.py")
        if name == "AutoTokenizer.from_pretrained"
    ]
    assert keyword(call, "trust_remote_code") == "False"
    others = [
        path
        for path in python_files("recallkit")
        for name, _ in calls(path)
        if "AutoTokenizer" in name
    ]
    assert others == [ROOT / "recallkit/text/tokenizers.py"]
