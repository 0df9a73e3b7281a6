"""What pip is told is true: every dependency is needed and named, every bound can be tried,
archives hold nothing of who made them."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from recallkit import config
from tests.conftest import ROOT
from tests.test_structure import python_files, tree_of

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
NEEDED_BY_OTHERS = {
    "backports-zstd": "fsspec, under datasets, reads the hub's .zst files with it",
}
"""Dependencies that no module of ours imports, and why they are there all the same."""
UNDECLARED = {
    "liger_kernel": "a peer that a benchmark times where it is there",
    "cut_cross_entropy": "a peer that a benchmark times where it is there",
    "atheris": "guides fuzzing where it is there",
    "nltk": "comes with lm-eval; `profile --stop-words nltk` tells what to do without it",
    "markdown_it": "comes with rich; a test reads tables with it",
    "torchtitan": "a test of its recipe runs where a user has it",
    "olmo_core": "the same of OLMo-core",
    "levanter": "another tool, run by an interpreter of its own in a benchmark",
    "tqdm": "comes with transformers; examples draw their progress with it",
    "mkdocs": "comes with mkdocs-material, which names the versions that it can do with",
    "griffe": "comes with mkdocstrings-python",
    "packaging": "comes with pytest; this file's own",
    "click": "under typer; a test catches what it raises",
}
UNDECLARED |= dict.fromkeys(
    ("flax", "jax", "llama_cpp", "megatron", "mlx", "mlx_lm", "vllm"),
    "a recipe is for those who have it",
)
"""Modules that are imported and are no dependency of ours, and why they need be none."""
ELSEWHERE = {
    "gigatoken": "gigatoken",
    "fla": "fla-core",
    "ray": "ray",
    "triton": "triton",
    "selenium": "selenium",
}
ELSEWHERE |= {"entmax": "entmax", "torchao": "torchao"}
ELSEWHERE |= {name: name for name in ("trackio", "wandb", "mlflow", "tensorboard")}
"""Modules of optional dependencies, which need not be installed where the tests run, with their
distributions."""


def declared(*extras: str) -> dict[str, Requirement]:
    """Requirements by normalised name: the dependencies, and those of some extras."""
    lines = [
        *PROJECT["dependencies"],
        *(line for extra in extras for line in PROJECT["optional-dependencies"][extra]),
    ]
    return {
        canonicalize_name(requirement.name): requirement for requirement in map(Requirement, lines)
    }


def imports(folder: str) -> dict[str, Path]:
    """Third-party top-level modules that a folder's files import, wherever in them, each with one
    such file."""
    found: dict[str, Path] = {}
    for path in python_files(folder):
        for node in ast.walk(tree_of(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += (
                [node.module or ""] if isinstance(node, ast.ImportFrom) and not node.level else []
            )
            found.update({name.split(".")[0]: path for name in names})
    beside = {path.stem for path in (ROOT / folder).glob("*.py")}
    ours = {
        "recallkit",
        "kernels",
        "tests",
        "scripts",
        "examples",
        *beside,
        *sys.stdlib_module_names,
    }
    return {name: path for name, path in found.items() if name not in ours}


INSTALLED = packages_distributions()


def distributions(module: str) -> set[str]:
    installed = INSTALLED.get(module, [])
    return {
        canonicalize_name(name)
        for name in [*installed, *([ELSEWHERE[module]] if module in ELSEWHERE else [])]
    }


def test_every_dependency_is_imported():
    used = {
        name
        for folder in ("recallkit", "kernels")
        for module in imports(folder)
        for name in distributions(module)
    }
    assert set(declared()) - used == set(NEEDED_BY_OTHERS)


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        (
            "recallkit",
            ("fast", "ray", "gpu", "peft", "fla", "trackio", "mlflow", "tensorboard", "weights"),
        ),
        ("kernels", ("gpu",)),
        ("examples", ("fast",)),
        ("scripts", ("docs",)),
        ("tests", ("fast", "ray", "gpu", "trackio", "wandb", "mlflow", "tensorboard", "dev")),
    ],
)
def test_every_import_is_declared(folder, extras):
    names = set(declared(*extras))
    foreign = {
        module: str(path.relative_to(ROOT))
        for module, path in imports(folder).items()
        if module not in UNDECLARED and not distributions(module) & names
    }
    assert not foreign, f"imported, but not in pyproject.toml: {foreign}"


def lowest_versions(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / "scripts/lowest_versions.py"), str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_lowest_versions_are_those_that_pyproject_admits():
    done = lowest_versions(ROOT / "pyproject.toml")
    assert done.returncode == 0, done.stderr
    pinned = {canonicalize_name(r.name): r for r in map(Requirement, done.stdout.split())}
    wanted = declared(*PROJECT["optional-dependencies"])
    assert set(pinned) == set(wanted)
    for name, requirement in wanted.items():
        (pin,) = pinned[name].specifier
        assert pin.operator == "=="
        assert requirement.specifier.contains(pin.version, prereleases=True), name
        assert {spec.operator for spec in requirement.specifier} <= {">=", "<"}, (
            "a bound of another kind is not tried"
        )


@pytest.mark.parametrize(
    "requirement", ["numpy", "numpy<3", "numpy==2", "triton; platform_system == 'Linux'"]
)
def test_a_dependency_without_a_lower_bound_cannot_be_tried(requirement, tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(f'[project]\ndependencies = ["{requirement}"]\n', encoding="utf-8")
    done = lowest_versions(path)
    assert done.returncode == 1
    assert done.stderr == f"{requirement}: exactly one lower bound (>=) is required\n"


def test_two_lower_bounds_of_one_dependency_cannot_be_tried(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(
        '[project]\ndependencies = ["numpy>=2"]\noptional-dependencies = {fast = ["numpy>=2.1"]}\n',
        encoding="utf-8",
    )
    done = lowest_versions(path)
    assert (done.returncode, done.stderr) == (1, "numpy: two lower bounds\n")


@pytest.mark.slow
@pytest.mark.timeout(5400)
@pytest.mark.parametrize("end", ["lowest", "newest"])
def test_both_ends_of_the_versions_work(end, tmp_path):
    asked = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-cache-dir",
        "--retries",
        "0",
        "--no-deps",
        "typer==0.24.0",
    ]
    if subprocess.run([*asked, "--dest", tmp_path], capture_output=True, check=False).returncode:
        pytest.skip("no package index is reached")
    command = [ROOT / "scripts/check_versions.sh", end]
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHON": sys.executable},
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]


def test_tested_versions_are_admitted():
    """constraints-cpu.txt holds versions that pyproject.toml admits, of packages that it names."""
    lines = [
        line
        for line in (ROOT / "constraints-cpu.txt").read_text(encoding="utf-8").splitlines()
        if not line.startswith("#")
    ]
    wanted = declared(*PROJECT["optional-dependencies"]) | {
        "setuptools": Requirement("setuptools>=77")
    }
    for pin in map(Requirement, lines):
        (version,) = (spec.version for spec in pin.specifier)
        assert wanted[canonicalize_name(pin.name)].specifier.contains(version), pin


def test_the_release_list_names_what_is_there():
    text = (ROOT / "docs/release.md").read_text(encoding="utf-8")
    targets = re.findall(
        r"^([a-z]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE
    )
    asked = [
        target
        for words in re.findall(r"\bmake ((?:[a-z]+ ?)+)$", text, re.MULTILINE)
        for target in words.split()
    ]
    assert asked
    assert set(asked) <= set(targets)
    for name in re.findall(r"\b(?:scripts|tests|examples|docs)/[\w./-]+\w", text):
        assert (ROOT / name).exists(), f"docs/release.md names {name}"


def test_no_line_installs_the_distribution_of_another_project():
    """On the index `recallkit` is a stranger's; ours is recallkit-lm."""
    assert PROJECT["name"] == config.DISTRIBUTION
    found = {}
    for path in [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *python_files("recallkit"),
        *(ROOT / "examples").glob("*"),
    ]:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        found[path.name] = re.findall(
            r"(?:(?<!re)install|uvx|--from|--spec) [\"']?recallkit(?![\w-])[^\n]*|recallkit\[\w+",
            text,
        )
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_every_remedy_names_an_extra_that_there_is():
    asked = {
        name
        for path in python_files("recallkit")
        for name in re.findall(r"installing\([\"'](\w+)[\"']\)", path.read_text(encoding="utf-8"))
    }
    assert "peft" in asked
    assert asked <= set(PROJECT["optional-dependencies"])
    assert config.installing("fast") == 'pip install "recallkit-lm[fast]"'
