"""`make` says what it installs, step by step, and shows what a failing step prints. pip itself is a
stand-in here."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere torch has no step of its own"
)

STAND_IN = """#!/bin/bash
case "$*" in
*sys.version_info*) exit 0 ;;
"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
*--dry-run*) echo "Would install torch-2.13.0" ;;
*"install"*"$FAILS"*) echo "Collecting everything"; [ -z "$FAILS" ] || { echo "ERROR: no space left" >&2; exit 3; } ;;
*) echo "quiet" ;;
esac
"""


@pytest.fixture
def install(tmp_path):
    """Runs scripts/install.sh for a new environment, where a pip whose arguments contain `fails`
    ends with an error."""
    (tmp_path / "python").write_text(STAND_IN)
    (tmp_path / "python").chmod(0o755)

    def call(fails: str = "") -> subprocess.CompletedProcess[str]:
        command = [ROOT / "scripts/install.sh", tmp_path / "venv", "-e", ".[fast]"]
        environment = {**os.environ, "PYTHON": str(tmp_path / "python"), "FAILS": fails}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=60, env=environment
        )

    return call


def told(text: str) -> list[str]:
    """What is said of each step, without the seconds before it."""
    return [line.split(" s  ", 1)[1] for line in text.splitlines() if line[:4].strip().isdigit()]


def test_every_step_is_told(install, tmp_path):
    """A line each where nobody watches, none of them pip's."""
    done = install()
    assert done.returncode == 0, done.stderr
    assert told(done.stdout) == [
        f"a virtual environment in {tmp_path / 'venv'}",
        "torch, its CPU build (0.7 GB on disk)",
        "-e .[fast] and the packages that it needs (about 3 GB on disk with torch: some minutes)",
        "modules compiled by a first import",
        f"installed in {tmp_path / 'venv'}",
    ]
    assert "Collecting" not in done.stdout + done.stderr
    assert told(install().stdout)[0].startswith("torch"), "the environment is there"


def test_what_a_failing_step_prints_is_shown(install):
    done = install(fails=".[fast]")
    assert done.returncode == 3
    assert "Collecting everything\nERROR: no space left\nfailed after" in done.stderr
    assert done.stderr.splitlines()[-1].endswith("(about 3 GB on disk with torch: some minutes)")
    assert "installed in" not in done.stdout
