"""Commands that make a result again: read back by a shell, they are the words that were meant."""

from __future__ import annotations

import shlex

from recallkit.display.exports import bare, command_line


def test_options_are_written_as_a_user_would():
    assert command_line("mqar", "a", pairs=[4, 8], length=256, o="DIR") == "recallkit mqar a --pairs 4,8 --length 256 -o DIR"
    assert command_line("gap", "a", "b", clean=True, slice=("x", "y = 1"), context_gain=[]) == (
        "recallkit gap a b --clean --slice x --slice 'y = 1'"
    )
    assert (
        command_line("slice", seed=0, boundary="pack", limit_tokens=None, force=False, name="")
        == "recallkit slice --seed 0 --boundary pack"
    )


def test_a_shell_reads_what_was_meant():
    words = ["$(rm -rf /)", "a b", "it's; `x`", "--force"]
    assert shlex.split(command_line("ablate", *words, mixers=words)) == ["recallkit", "ablate", *words, "--mixers", ",".join(words)]


def test_folders_are_left_out():
    assert [bare(name) for name in ("/home/me/a b.txt", "./x.json", "../y/z", "~/w")] == ["a b.txt", "x.json", "z", "w"]
    others = ["owner/name", "https://host/f.json", "demo:validation", "plain.txt"]
    assert [bare(name) for name in others] == others
