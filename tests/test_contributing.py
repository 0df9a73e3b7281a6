"""CONTRIBUTING's table, walked: what its rows name is there, and each kind of thing that people add
takes what it says and no more."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

import recallkit
from tests.conftest import ROOT

SPAN = re.compile(r"`([^`]+)`")
ENTRY = re.compile(r"`([A-Z_]+|\w+)` in `([^`]+)`")


@dataclass(frozen=True)
class Row:
    """A row of the table: files that are written anew, (name, file) of the tables that get an
    entry, the test."""

    new_files: list[str]
    entries: list[tuple[str, str]]
    test: str


def read_table() -> dict[str, Row]:
    text = (
        (ROOT / "CONTRIBUTING.md")
        .read_text(encoding="utf-8")
        .split("## To add X, touch Y")[1]
        .split("\n## ")[0]
    )
    lines = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")][2:]
    cells = [[cell.strip() for cell in line] for line in lines]
    return {
        what: Row(
            SPAN.findall(new), ENTRY.findall(entry), SPAN.findall(test)[0] if "`" in test else ""
        )
        for what, new, entry, test, _ in cells
    }


ROWS = read_table()


def test_the_table_has_everything_that_people_add():
    wanted = {
        "mixer",
        "slice",
        "recall task",
        "command",
        "option of a command",
        "query",
        "kernel",
        "preset of text",
        "control model",
    }
    assert wanted | {"model kind", "table column"} <= set(ROWS)


def definition(path: Path, name: str) -> ast.expr | ast.FunctionDef | None:
    """What a module defines under a name at its top: the value, or the function."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        targets = (
            node.targets
            if isinstance(node, ast.Assign)
            else [node.target]
            if isinstance(node, ast.AnnAssign)
            else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    return None


def test_what_rows_name_is_there():
    missing = []
    for what, row in ROWS.items():
        missing += [
            f"{what}: no {name} in {path}"
            for name, path in row.entries
            if not (ROOT / path).is_file() or definition(ROOT / path, name) is None
        ]
        missing += [
            f"{what}: no folder for {path}"
            for path in row.new_files
            if not folder_of(path).is_dir()
        ]
        if row.test and "NAME" not in row.test and not (ROOT / row.test).is_file():
            missing.append(f"{what}: no {row.test}")
    assert not missing, "\n".join(missing)


def folder_of(path: str) -> Path:
    """The folder that there must be for a new file: the one above NAME."""
    parts = Path(path).parts
    named = next(
        (place for place, part in enumerate(parts) if "NAME" in part or part == "FEATURE"), 0
    )
    return ROOT.joinpath(*parts[:named]) if len(parts) > 1 else ROOT


# ------------------------------------------------------------------------------- each done for real


@dataclass(frozen=True)
class Clone:
    """A copy of the package in a folder of its own."""

    folder: Path

    def add(self, what: str, name: str, entry: str, text: str = "") -> None:
        """Does what the row says and no more: its new file with `text`, its one `entry`, in the
        last place."""
        row = ROWS[what]
        for path in row.new_files:
            made = self.folder / path.replace("NAME", name)
            assert not made.exists()
            made.write_text(text, encoding="utf-8")
        [(table, path)] = row.entries
        changed = self.folder / path
        lines = changed.read_text(encoding="utf-8").splitlines()
        lines.insert(end_of_entries(changed, table), entry)
        changed.write_text("\n".join(lines) + "\n", encoding="utf-8")

    def run(self, *arguments: object) -> str:
        """What `recallkit ARGUMENTS` of the copy prints, or what Python does of `-c`."""
        words = list(arguments) if arguments[0] == "-c" else ["-m", "recallkit", *arguments]
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "COLUMNS": "140"}
        command = [sys.executable, *map(str, words)]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=environment,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout


def end_of_entries(path: Path, name: str) -> int:
    """The number of lines up to the last entry of a table: a dictionary, a tuple, or a dictionary
    made of one of these."""
    table = definition(path, name)
    if isinstance(table, ast.DictComp):
        table = table.generators[0].iter
    if isinstance(table, ast.Call):  # `_PLACES.items()`
        table = definition(path, ast.unparse(table.func).partition(".")[0])
    entries = (
        table.values
        if isinstance(table, ast.Dict)
        else table.elts
        if isinstance(table, ast.Tuple | ast.List)
        else []
    )
    return int(entries[-1].end_lineno or 0)


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Clone:
    """One for all, with what Python has compiled: whatever is added is compiled beside it."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("recallkit", "kernels", "queries"):
        shutil.copytree(ROOT / name, folder / name, symlinks=True)
    return Clone(folder)


MIXER = '''"""The mean of the tokens so far: a mixer that forgets nothing and prefers nothing."""

import torch

from recallkit.models.mixers.api import Mixer


class RunningMean(Mixer):
    """One state of d_model sums."""

    def forward(self, u, ids=None):
        return u.cumsum(1) / torch.arange(1, u.shape[1] + 1, dtype=u.dtype)[:, None]

    def state_size(self, t):
        return self.d_model

    def flops(self, t):
        return 2 * t * self.d_model
'''


def test_a_mixer_is_a_file_and_a_line(clone):
    clone.add("mixer", "running_mean", '    "running_mean": "running_mean:RunningMean",', MIXER)
    shown = clone.run("models", "--describe")
    [line] = [line for line in shown.splitlines() if line.startswith("running_mean")]
    # parameters, elements of its state, operations per token
    assert line.split() == [
        "running_mean",
        "0",
        "1.02k",
        "2.05k",
    ]


def test_a_cache_policy_is_a_line(clone):
    clone.add(
        "cache policy",
        "longest",
        (
            '    "longest": ("longest:0.5", functools.partial(_evicting, lambda keys: '
            "keys.norm(dim=-1))),"
        ),
    )
    program = (
        "from recallkit.models.spec import parse_model; from recallkit.models.cache_policies "
        "import parse_cache; import torch; "
    )
    program += (
        "keys = torch.tensor([1.0, 3, 2, 4]).view(1, 1, 4, 1); model = "
        "parse_model('zoo:attention,cache=longest:0.5'); "
    )
    program += "print(parse_cache(model.cache)(keys, keys, 4).keys.flatten().tolist())"
    assert clone.run("-c", program) == "[3.0, 4.0]\n"


def test_a_recall_task_is_a_line(clone):
    clone.add(
        "recall task",
        "recipes",
        '        KnownTask("recipes", None, "amounts in recipes", is_comparable=False),',
    )
    assert "amounts in recipes" in clone.run("tasks")
    (clone.folder / "recipes.jsonl").write_text(
        '{"text": "Salt: 5 g. Flour: 1 kg. Salt:", "value": "5 g"}\n', encoding="utf-8"
    )
    program = (
        "from pathlib import Path; from recallkit.recall.tasks import load_rows, tasks_of; data "
        "= Path('recipes.jsonl'); "
    )
    assert (
        clone.run("-c", program + "print(tasks_of(data), load_rows('recipes', data).rows[0].value)")
        == "['recipes'] 5 g\n"
    )


COMMAND = '''"""`vowels`: how many vowels a word has."""

from dataclasses import MISSING, dataclass

from recallkit.commands.adapter import Outcome, command
from recallkit.declarations import Options, argument, option


@dataclass(frozen=True)
class Vowels(Options):
    """Whose vowels are counted, and up to how many."""

    word: str = argument("The word.", MISSING, metavar="WORD")
    most: int = option("Count no further.", 99, least=1, most=99)


@command("vowels", Vowels, examples=("recallkit vowels banana",))
def vowels(asked: Vowels) -> Outcome[int]:
    """Count the vowels of a word."""
    found = min(asked.most, sum(letter in "aeiou" for letter in asked.word))
    return Outcome(value=lambda: found, show=lambda full: print(found, "vowels"), json=lambda: {"vowels": found})
'''


def test_a_command_is_a_file_and_a_line(clone):
    clone.add("command", "vowels", '    "Mine": {"vowels": "vowels"},', COMMAND)
    assert "Count the vowels of a word." in clone.run("--help")
    assert clone.run("vowels", "recall", "--most", "1") == "1 vowels\n"
    assert clone.run("vowels", "recall", "--json").split() == ["{", '"vowels":', "2", "}"]
    assert (
        clone.run("-c", "from recallkit.commands.vowels import vowels; print(vowels('banana'))")
        == "3\n"
    )


def test_a_slice_is_an_entry(clone, small_slices):
    entry = '    _define("far", "distance > 32", "The bigram was more than 32 tokens back."),'
    clone.add("slice", "far", entry)
    models = ("control:recall", "control:bigram")
    recallkit.score(models, slices=small_slices, counts=small_slices.parent / "counts.duckdb")
    shown = clone.run(
        "gap", *models, "--slices", small_slices, "--slice", "far", "-o", clone.folder / "gap"
    )
    assert re.search(r"\bfar\b", shown)
