"""The structure that the project promises: imports go one way, every file is on README's map, every command documented."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from recallkit import cli
from tests.conftest import ROOT

FOLDERS = ("recallkit", "kernels", "queries", "examples", "scripts", "docs", "tests")
README = (ROOT / "README.md").read_text(encoding="utf-8")


def python_files(folder: str) -> list[Path]:
    return [p for p in sorted((ROOT / folder).rglob("*.py")) if not any(q.is_symlink() for q in (p, *p.parents))]


def imported(path: Path) -> set[str]:
    """Modules of ours that a file imports, wherever in it; those for type checkers alone are left out."""
    found: set[str] = set()

    def walk(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("recallkit"):
            found.update({f"{node.module}.{alias.name}" for alias in node.names} if node.module == "recallkit" else {str(node.module)})
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names if alias.name.startswith("recallkit"))
        for child in ast.iter_child_nodes(node):
            walk(child)

    walk(ast.parse(path.read_text(encoding="utf-8")))
    return found


# What each part may import; a part is a folder or a module of recallkit. Leaves import leaves.
LEAVES = {"errors", "config", "records", "registry", "artifacts", "layouts", "journal", "joining", "db", "counts", "vocabulary", "tables"}
LEAVES |= {"events", "timings", "time_limit", "runs"}
WORK = {"texts", "counting", "pipeline", "scoring", "profiling", "recall", "stock_tasks", "mqar", "embedded"}
"""What commands and the Python interface call: the stages put together."""
LAYERS: dict[str, set[str]] = {
    "compiled": {"compiled"},
    "kernels": {"kernels"},
    "models": LEAVES | {"compiled", "kernels", "models"},
    "sources": LEAVES | {"sources"},
    "attribution": LEAVES | {"attribution"},
    "stages": LEAVES | {"compiled", "models", "sources", "attribution"},
    "console": {"errors", "tables", "events"},
    "exports": LEAVES,
    "charts": LEAVES | {"charts", "attribution"},
    "comparison": LEAVES | {"stages"},
    "excerpt": LEAVES | {"stages", "attribution", "scoring"},
    "texts": LEAVES | {"stages", "console"},
    "translation": LEAVES,
    "workers": LEAVES | {"workers", "texts", "stages", "models", "translation", "console"},
    "counting": LEAVES | {"texts", "workers", "stages", "sources", "console"},
    "evals": LEAVES | {"evals", "sources", "models"},
    "model_tokenizer": LEAVES | {"models"},
    "scoring": LEAVES | {"workers", "stages", "models", "console", "model_tokenizer"},
    "index_import": LEAVES | {"stages", "console"},
    "pipeline": LEAVES | {"texts", "counting", "scoring", "stages", "attribution", "models", "console", "index_import"},
    "profiling": LEAVES | {"texts", "pipeline", "stages", "console"},
    "mqar": LEAVES | {"evaluated", "evals", "stages", "models", "console"},
    "embedded": LEAVES | {"texts", "pipeline", "models", "stages"},
    "report": LEAVES | {"report", "comparison", "excerpt", "charts", "views", "attribution", "console", "stages", "scoring"},
    "evaluated": LEAVES | {"evals", "stages", "models", "console", "embedded", "model_tokenizer"},
    "recall": LEAVES | {"evaluated", "stock_tasks", "evals", "stages", "console"},
    "stock_tasks": LEAVES | {"evaluated", "evals", "console"},
    "options": {"config", "exports"},
    "doctor": LEAVES | {"compiled", "doctor", "stages", "models", "kernels", "embedded", "workers"},
    "bench": LEAVES | {"bench", "kernels", "models", "charts"},
    "views": LEAVES | {"views", "bench", "doctor", "stages", "models", "scoring", "comparison", "console"},
    "api": LEAVES | {*WORK, "comparison", "excerpt", "report", "stages", "attribution", "charts", "evals"},
    "commands": LEAVES
    | {
        *WORK,
        "commands",
        "options",
        "doctor",
        "bench",
        "stages",
        "models",
        "evals",
        "comparison",
        "excerpt",
        "exports",
        "views",
        "report",
        "charts",
        "console",
    },
    "cli": {"commands", "errors", "events"},
    **{leaf: LEAVES | {"compiled"} for leaf in LEAVES},
}


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


@pytest.mark.parametrize("path", [*python_files("recallkit"), *python_files("kernels")], ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path):
    relative = path.relative_to(ROOT)
    part = relative.parts[0] if relative.parts[0] == "kernels" else relative.with_suffix("").parts[1]
    if part in ("__init__", "__main__"):
        return
    for module in imported(path):
        target = part_of(module)
        if target in ("", "__version__"):
            continue
        own = part == "stages" and target == "stages"
        assert not own, f"{relative} imports another stage: {module}"
        assert target in LAYERS[part], f"{relative} imports {module}"


def test_models_and_kernels_need_little():
    """They run on a machine with a card and torch, triton, numpy, tokenizers, safetensors and transformers alone."""
    allowed = {"torch", "triton", "numpy", "tokenizers", "safetensors", "transformers", "huggingface_hub", "recallkit"}
    for path in [*python_files("kernels"), *python_files("recallkit/models")]:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        names |= {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        foreign = {name.split(".")[0] for name in names} - allowed - set(sys.stdlib_module_names)
        assert not foreign, f"{path} needs {foreign}"


def tracked_files() -> list[str]:
    top = [p.name for p in ROOT.iterdir() if p.suffix in {".md", ".txt", ".toml"} or p.name in {"Makefile", "LICENSE"}]
    deep = [
        p
        for folder in FOLDERS
        for p in (ROOT / folder).rglob("*")
        if p.is_file() and p.suffix in {".py", ".sql", ".sh", ".md", ".json", ".c"}
    ]
    ours = [p for p in deep if not any(q.is_symlink() for q in p.parents) and p.name != "__init__.py"]
    return sorted([*top, *(str(p.relative_to(ROOT)) for p in ours)])


def test_every_file_is_on_the_map():
    section = README.split("## Files")[1]
    zoo = "recallkit/data/zoo/"
    assert f"`{zoo[:-1]}`" in section
    missing = [name for name in tracked_files() if f"`{name}`" not in section and name != "README.md" and not name.startswith(zoo)]
    assert not missing, "not on README's map:\n" + "\n".join(missing)
    gone = [name for name in re.findall(r"^- `([^`]+)`", section, re.MULTILINE) if not (ROOT / name).exists()]
    assert not gone, f"on README's map, but not there: {gone}"


def test_every_module_says_what_it_is():
    for folder in FOLDERS:
        for path in python_files(folder):
            if path.name == "__init__.py" and folder == "tests":
                continue
            assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))), f"{path} has no docstring"
    for path in (ROOT / "queries").rglob("*.sql"):
        assert path.read_text(encoding="utf-8").startswith("-- "), f"{path} has no header"
        assert "grain" in path.read_text(encoding="utf-8").lower() or path.parent.name == "counts", f"{path} states no grain"


COMMANDS = [command.name or command.callback.__name__ for command in cli.app.registered_commands]


def test_every_command_is_documented():
    for name in COMMANDS:
        assert f"recallkit {name}" in README, f"README does not show `recallkit {name}`"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_for_every_option(name, run):
    import typer

    command = typer.main.get_command(cli.app).commands[name]
    assert command.help
    assert [p.name for p in command.params if p.param_type_name == "option" and not p.help and p.name != "help"] == []
    shown = run(name, "--help")
    assert shown.returncode == 0
    written = sum("[default:" in (p.help or "") for p in command.params if p.param_type_name == "option")
    assert shown.stdout.count("[default:") >= written, "square brackets of help are markup unless they are escaped"


def test_nothing_names_where_it_was_made():
    for name in tracked_files():
        text = (ROOT / name).read_text(encoding="utf-8")
        for word in ("." + "./shared", "/" + "work/", "farm" + "-"):
            assert word not in text, f"{name} names {word}"


def test_the_package_imports_nothing_heavy():
    program = (
        "import sys, recallkit, recallkit.cli; print(sorted({'torch', 'numpy', 'polars', 'duckdb', 'numba', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.strip() == "[]"
