"""Completion in the shell: commands, options, and the values that an option has."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = "import sys; sys.argv[0] = 'recallkit'; from recallkit.__main__ import main; main()"


def completed(*words: str) -> list[str]:
    """What bash is told for the last of some words."""
    asked = {
        "_RECALLKIT_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(["recallkit", *words]),
        "COMP_CWORD": str(len(words)),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=os.environ | asked,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_an_option_and_its_value_are_completed():
    assert completed("gap", "--cl") == ["--cluster", "--clean"]
    assert completed("gap", "--cluster", "s") == ["sequence", "source"]
