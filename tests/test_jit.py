"""What a process loads before its first compiled loop, and what it never needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import ROOT, made_up_texts, write_jsonl

STARTS = {
    "the program": (
        "import recallkit.__main__ as program\nsys.argv = ['recallkit', '--version']\ntry: "
        "program.main()\nexcept SystemExit: pass\n"
    ),
    "a worker": (
        "import multiprocessing, recallkit.parallel.processes as processes\n"
        "ours, theirs = multiprocessing.Pipe()\nours.close()\nprocesses._serve(None, 0, 1, "
        "theirs)\n"
    ),
    "another's program": "",
}


def python(code: str, path: Path) -> str:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(path)])}
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}"],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("start", STARTS)
def test_extensions_and_linear_algebra_are_loaded_in_other_programs_alone(start, tmp_path):
    """gigatoken brings awkward, whose extension of numba takes a second, linear algebra imports
    SciPy: our loops need neither."""
    (tmp_path / "slow_extension.py").write_text(
        "def register():\n    print('registered')\n", encoding="utf-8"
    )
    about = tmp_path / "slow_extension-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: slow-extension\nVersion: 1.0\n", encoding="utf-8"
    )
    (about / "entry_points.txt").write_text(
        "[numba_extensions]\ninit = slow_extension:register\n", encoding="utf-8"
    )
    code = (
        f"{STARTS[start]}\nimport recallkit.jit, numba.np.arraymath as "
        "blas\nprint(blas._HAVE_BLAS, 'scipy.linalg' in sys.modules)"
    )
    *printed, algebra = python(f"{code}\nimport scipy.linalg.cython_blas", tmp_path).splitlines()
    is_other = start == "another's program"
    assert ("registered" in printed, algebra) == (is_other, f"{is_other} {is_other}")


def test_a_comparison_compiles_nothing():
    """Importing numba takes a second, which `gap` does not need."""
    code = (
        "import sys, recallkit.attribution.comparison, recallkit.attribution.view, "
        "recallkit.measure.sums; print('numba' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )


def test_small_commands_import_no_library_that_they_can_do_without(tmp_path: Path):
    """pyarrow imports pandas for any conversion, torch its compiler for a random tensor without
    storage, gigatoken awkward, typer pydantic for every word: 0.1 to 1 s."""
    text, slices = write_jsonl(tmp_path / "text.jsonl", made_up_texts(1, 100)), tmp_path / "slices"
    commands = {
        ("slice", text, "-o", slices): {"torch"},
        ("score", "zoo:delta", "--slices", slices): {"numba", "polars"},
    }
    for words, others in commands.items():
        program = STARTS["the program"].replace(
            "['recallkit', '--version']", str(["recallkit", *map(str, words)])
        )
        unused = {"awkward", "pandas", "pydantic", "sympy", "torch._dynamo", *others}
        code = f"{program}\nprint(sorted({unused} & set(sys.modules)))\nimport pandas, pyarrow"
        printed = python(
            f"{code}\nprint(pyarrow.array([1, 2]).to_pandas().sum())", tmp_path
        ).splitlines()
        assert printed[-2:] == ["[]", "3"]
    assert "Scores of every predicted token" in printed
