"""Completion in the shell: commands, options, and the values that an option has."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = "import sys; sys.argv[0] = 'recallkit'; from recallkit.__main__ import main; main()"


def completed(*words: str) -> list[str]:
    """What bash is told for the last of some words."""
    asked = {"_RECALLKIT_COMPLETE": "complete_bash", "COMP_WORDS": " ".join(["recallkit", *words]), "COMP_CWORD": str(len(words))}
    done = subprocess.run([sys.executable, "-c", PROGRAM], env=os.environ | asked, capture_output=True, text=True, check=True)
    return done.stdout.split()


def test_an_option_and_its_value_are_completed():
    assert completed("gap", "--cl") == ["--cluster", "--clean"]
    assert completed("gap", "--cluster", "s") == ["sequence", "source"]


def test_bash_runs_what_it_is_given(tmp_path):
    """The script is evaluated by a real bash, which then completes with the program that it names."""
    program = tmp_path / "recallkit"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{PROGRAM}" "$@"\n')
    program.chmod(0o755)
    asked = 'eval "$(recallkit --show-completion bash)"; COMP_WORDS=(recallkit sl) COMP_CWORD=1; _recallkit_completion recallkit'
    paths = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", f'{asked}; echo "${{COMPREPLY[@]}}"'], env=paths, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["slice"], done.stderr
