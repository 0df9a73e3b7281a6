"""The structure that the project promises: the order of its packages, its map, what documents name,
what is tracked."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import typer

from recallkit import cli
from tests.conftest import ROOT

FOLDERS = ("recallkit", "kernels", "queries", "examples", "scripts", "docs", "tests")
FILES_MAP = (ROOT / "docs/files.md").read_text(encoding="utf-8")

ORDER = """
kernels
errors
config
declarations
events
plugins
registry
ragged
quiet_transformers
jit
storage
display
trackers
parallel
options
text
counting
models
slicing
scoring
measure
attribution
papers
intervening
ablation
profiling
builtin
tracking
recall
synthetic
mqar
training
verification
report
doctor
commands
cli
__main__
""".split()
"""Every package and top-level module of recallkit, each of which imports only those above it;
DESIGN.md has it as a picture."""


def python_files(folder: str) -> list[Path]:
    return [
        p
        for p in sorted((ROOT / folder).rglob("*.py"))
        if not any(q.is_symlink() for q in (p, *p.parents))
    ]


@cache
def modules() -> dict[str, Path]:
    """The modules of recallkit by their dotted names; those of kernels/ are
    `recallkit.kernels...`."""
    found = {}
    for path in (*python_files("recallkit"), *python_files("kernels")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "recallkit" else ("recallkit", *parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imports_of(path: Path) -> set[str]:
    """Modules of ours that a file imports, wherever in it, those for type checkers too;
    `recallkit.NAME` for the package's own names."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ImportFrom) and (
            node.level or (node.module or "").partition(".")[0] == "recallkit"
        ):
            assert not node.level, f"{path} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= {
                name if name in modules() or node.module == "recallkit" else str(node.module)
                for name in names
            }
        elif isinstance(node, ast.Import):
            found |= {
                alias.name for alias in node.names if alias.name.partition(".")[0] == "recallkit"
            }
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    """What every module imports, but for the package's own file: it offers Python's functions, and
    nothing imports those from it."""
    return {module: imports_of(path) for module, path in modules().items() if module != "recallkit"}


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_packages_import_only_what_is_before_them():
    rank = {package: place for place, package in enumerate(ORDER)}
    assert {package_of(module) for module in import_graph()} == set(ORDER) | {"kernels"}
    wrong = []
    for module, imported in import_graph().items():
        own = package_of(module)
        for other in imported:
            if other not in modules():
                wrong.append(f"{module} imports {other}, a name of the package itself")
            elif package_of(other) != own and rank[package_of(other)] > rank[own]:
                wrong.append(f"{module} imports {other}")
    assert not wrong, "imports that run back up:\n" + "\n".join(wrong)


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """A path from a module back to itself for every circle that a walk through all imports
    meets."""
    found, done = [], set()

    def walk(module: str, way: list[str]) -> None:
        if module in way:
            found.append([*way[way.index(module) :], module])
        elif module not in done:
            for other in sorted(graph.get(module, ())):
                walk(other, [*way, module])
            done.add(module)

    for module in graph:
        walk(module, [])
    return found


def test_no_modules_import_each_other():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == [["b", "c", "b"]]
    found = [" -> ".join(circle) for circle in circles(import_graph())]
    assert not found, "circles of imports:\n" + "\n".join(found)


def test_models_and_kernels_need_little():
    """They run on a machine with a GPU and torch, triton, numpy, tokenizers, safetensors and
    transformers alone.

    peft is imported for an adapter, fla for a model of fla, gguf for a GGUF file, torchao for
    quantised weights.
    """
    allowed = {
        "torch",
        "triton",
        "numpy",
        "tokenizers",
        "safetensors",
        "transformers",
        "huggingface_hub",
        "recallkit",
        "peft",
        "fla",
        "gguf",
        "torchao",
        "accelerate",
        "psutil",
    }
    wrong = []
    for path in [*python_files("kernels"), *python_files("recallkit/models")]:
        names = {
            a.name for n in ast.walk(tree_of(path)) if isinstance(n, ast.Import) for a in n.names
        }
        names |= {n.module or "" for n in ast.walk(tree_of(path)) if isinstance(n, ast.ImportFrom)}
        foreign = {name.split(".")[0] for name in names} - allowed - set(sys.stdlib_module_names)
        wrong += [f"{path.relative_to(ROOT)} needs {name}" for name in sorted(foreign)]
    assert not wrong, "\n".join(wrong)


def test_neither_the_package_nor_its_help_imports_anything_heavy():
    program = (
        "import sys, recallkit; print(sorted(name for name in sys.modules if "
        "name.startswith('recallkit'))); from recallkit import cli\n"
        "try: cli.run(['--help'])\n"
        "finally: print({'torch', 'numpy', 'polars', 'duckdb', 'numba', 'pyarrow', "
        "'transformers', 'altair', 'rich'} & set(sys.modules))"
    )
    first, *_, last = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert (first, last) == ("['recallkit', 'recallkit.config', 'recallkit.errors']", "set()")


def test_the_help_of_a_command_imports_neither_rich_nor_other_commands():
    program = (
        "import sys\nfrom recallkit import cli\ntry: cli.run(['gap', '--help'])\nfinally: "
        "print(*sys.modules, sep=',')"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    imported = set(done[-1].split(","))
    assert {name for name in imported if name.startswith("recallkit.commands.")} == {
        f"recallkit.commands.{of}" for of in ("adapter", "app", "gap", "slices")
    }
    assert "rich" not in imported


def test_tasks_are_listed_without_torch():
    program = (
        "import sys\nfrom recallkit import cli\ntry: cli.run(['tasks'])\nfinally: print('torch' "
        "in sys.modules)"
    )
    *shown, has_torch = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert has_torch == "False"
    assert any("two_hops" in line for line in shown)


def test_no_signature_is_longer_than_twelve_parameters():
    """What goes together is a group of options, handed on as it is."""
    wrong = []
    for path in python_files("recallkit"):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef):
                arguments = [
                    a.arg
                    for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
                    if a.arg not in ("self", "cls")
                ]
                wrong += (
                    [f"{path.relative_to(ROOT)}: {node.name} has {len(arguments)}"]
                    if len(arguments) > 12
                    else []
                )
    assert not wrong, "\n".join(wrong)


def test_every_module_says_what_it_is():
    files = [
        p
        for folder in FOLDERS
        for p in python_files(folder)
        if not (p.name == "__init__.py" and folder == "tests")
    ]
    wrong = [
        f"{path.relative_to(ROOT)} has no docstring"
        for path in files
        if not ast.get_docstring(tree_of(path))
    ]
    for path in sorted((ROOT / "queries").rglob("*.sql")):
        text = path.read_text(encoding="utf-8")
        if not text.startswith("-- "):
            wrong.append(f"{path.relative_to(ROOT)} has no header")
        if "grain" not in text.lower() and path.parent.name != "counts":
            wrong.append(f"{path.relative_to(ROOT)} states no grain")
    assert not wrong, "\n".join(wrong)


# ---------------------------------------------------------------------------------------- documents


FILE_NAMED = re.compile(r"[\w./]+\.(?:py|sh|md|yml)\b")


def tree_entries(text: str) -> dict[str, list[str]]:
    """Paths in the tree of docs/files.md, and the files that each description names.

    Entries are indented by two spaces below their folder, which ends in a slash.
    """
    paths: dict[str, list[str]] = {}
    folders: list[str] = []
    for line in text.split("```")[1].splitlines()[1:]:
        name = line.split()[0] if line.split() else ""
        depth = (len(line) - len(line.lstrip())) // 2
        if not name or depth > len(folders):
            continue  # an empty line, or the rest of a description
        folders = folders[:depth]
        paths["".join(folders) + name] = FILE_NAMED.findall(line.partition(" - ")[2])
        if name.endswith("/"):
            folders.append(name)
    return paths


def test_every_package_is_on_the_map():
    entries = tree_entries(FILES_MAP)
    gone = [name for name in entries if not (ROOT / name).exists()]
    for entry, names in entries.items():
        files = [name for name in names if not PLACEHOLDER.search(name)]
        gone += [f"{name} of {entry}" for name in files if not (ROOT / entry / name).is_file()]
    assert not gone, f"on the map of docs/files.md, but not there: {gone}"
    named = [
        name.removeprefix("recallkit/").removesuffix("/").removesuffix(".py")
        for name in entries
        if name.startswith("recallkit/")
    ]
    packages = [name for name in named if name in ORDER]
    assert packages == [name for name in ORDER if name != "kernels"], (
        "docs/files.md names other packages, or in another order"
    )
    missing = [folder for folder in FOLDERS if f"{folder}/" not in entries]
    assert not missing, f"not on the map of docs/files.md: {missing}"
    assert len(FILES_MAP.splitlines()) <= 80


def test_the_design_shows_the_order_of_packages():
    text = (ROOT / "DESIGN.md").read_text(encoding="utf-8")
    picture = text.split("## Packages")[1].split("```")[1]
    place = [
        re.search(rf"(?<![\w/]){name}(?![\w/])", picture)
        for name in ORDER
        if not name.startswith("__")
    ]
    assert all(place), (
        "not in DESIGN.md's picture: "
        f"{[name for name, found in zip(ORDER, place, strict=False) if not found]}"
    )
    places = [found.start() for found in place if found]
    assert places == sorted(places), "DESIGN.md's picture has another order"


def test_long_documents_stay_short():
    most = {"README.md": 130, "DESIGN.md": 150, "docs/log.md": 150}
    lengths = {name: len((ROOT / name).read_text(encoding="utf-8").splitlines()) for name in most}
    assert {name: n for name, n in lengths.items() if n > most[name]} == {}


SUFFIXES = "py|sql|md|css|js|json|svg|png|csv|jsonl|txt|toml|sh|c"
PATH_NAMED = re.compile(rf"(?<![\w./$-])((?:[\w.-]+/)+[\w.-]+\.(?:{SUFFIXES}))(?![\w/])")
MODULE_NAMED = re.compile(r"\brecallkit(?:\.\w+)+")
LINKED = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#([^)]*))?\)")
MADE = ("path/to/", "shards/", "train/", "DIR/", "OUT/", "eval/", "gap/", "slices/")
"""Beginnings of paths in documents that are a user's own files, or what a command writes."""
PLACEHOLDER = re.compile(
    r"(?:^|[/_])(?:NAME|MODULE|PACKAGE|FEATURE|MODEL|TASK|VERB_NOUN)(?:[/_.]|$)"
)


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def is_module_or_name(dotted: str) -> bool:
    """Whether a dotted name is a module of ours, or a name in one, or in a class of one; functions
    of the package are `recallkit.NAME`."""
    parts = dotted.split(".")
    if parts == ["recallkit", "kernels"]:
        return True  # a folder without a file of its own
    for end in range(len(parts), 0, -1):
        if ".".join(parts[:end]) in modules():
            thing = importlib.import_module(".".join(parts[:end]))
            for name in parts[end:]:
                if not hasattr(thing, name):
                    return False
                thing = getattr(thing, name)
            return True
    return False


def test_what_documents_name_exists():
    wrong = []
    for path in documents():
        text = path.read_text(encoding="utf-8")
        where = path.relative_to(ROOT)
        bases = (ROOT, ROOT / "recallkit", path.parent)
        paths = {
            name
            for name in PATH_NAMED.findall(text)
            if not name.startswith(MADE) and not PLACEHOLDER.search(name)
        }
        wrong += [
            f"{where} names {name}"
            for name in paths
            if not any((base / name).exists() for base in bases)
        ]
        wrong += [
            f"{where} links to {name}"
            for name, _ in LINKED.findall(text)
            if not (path.parent / name).exists()
        ]
        wrong += [
            f"{where} names {name}"
            for name in set(MODULE_NAMED.findall(text))
            if not is_module_or_name(name)
        ]
    assert not wrong, "\n".join(sorted(wrong))


# ----------------------------------------------------------------------------------------- commands

COMMANDS = typer.main.get_command(cli.app).commands


def test_every_command_is_documented():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    missing = [name for name in COMMANDS if f"recallkit {name}" not in page]
    assert not missing, f"docs/commands.md does not show `recallkit NAME` of {missing}"


def test_every_command_has_help_for_every_option():
    for name, command in COMMANDS.items():
        assert command.help, name
        assert [
            p.name
            for p in command.params
            if p.param_type_name == "option" and not p.help and p.name != "help"
        ] == [], name


# ---------------------------------------------------------------------------------- what is tracked


def tracked_files() -> list[str]:
    if not (ROOT / ".git").exists():
        pytest.skip("needs a clone: what is tracked is asked of git")
    return subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")[:-1]


OUTPUTS = {
    "counts.duckdb",
    "slices",
    "profile",
    "evals",
    "mqar",
    "report.html",
    "figures",
    "text-to-figure",
    "released",
}
"""Names that commands and examples write to where no other is given."""


def test_no_output_is_tracked():
    """A result in the tree is taken for somebody's finished work: `recallkit profile FILE` in a
    fresh clone would refuse to replace it."""
    assert [
        name for name in tracked_files() if name.split("/")[0] in OUTPUTS or ".partial" in name
    ] == []
    ignored = subprocess.run(
        ["git", "check-ignore", "--no-index", *sorted(OUTPUTS)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(ignored.stdout.split()) == OUTPUTS, (
        "names of outputs that .gitignore lacks are those missing on the left"
    )


PERSONAL = re.compile(rb"(?<![\w.}~$-])/(?:home|root|Users|tmp|mnt|private)/[\w.-]+")
PLACES = [word.encode() for word in ("." + "./shared", "/" + "work/", "farm" + "-")]


def test_nothing_names_where_it_was_made():
    """No path of somebody's machine is in a tracked file; tests may make some up."""
    wrong = []
    for name in tracked_files():
        content = (ROOT / name).read_bytes() if (ROOT / name).is_file() else b""
        found = [place for place in PLACES if place in content]
        found += [] if name.startswith("tests/") else PERSONAL.findall(content)
        wrong += [f"{name} names {place.decode()}" for place in found]
    assert not wrong, "\n".join(wrong)
