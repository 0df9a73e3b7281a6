"""The papers' theory as programs: each checks itself as it runs; what they print of circuits,
bounds and patterns is the papers'."""

from __future__ import annotations

import pytest
import torch

from tests.examples.conftest import EXAMPLES

PRINTED = {
    "1_circuits": [
        "DFT, row by row       4     12        0",
        "DFT, fast             4      8        0",
        "what cancels          2      4        3",
    ],
    "2_base_conv": [
        "shift 1 layer, running sum 2, remember 3",
        "degree 3: 345 layers",
        "answers every query of every two pairs",
    ],
    "3_mqar": ["20 sequences: attention answers every query"],
    "4_bounds": [
        "44, 176, 703 bits",
        "65,536 tokens in binary: degree 33, 5 layers (by its proof 6)",
        "one-hot to 5-hot tokens: 1, 2, 3, 3, 4",
    ],
    "5_sparse_patterns": [
        "strided, sequential               93.61 %              yes    3         3",
        "fixed, union                      87.89 %              yes    2         2",
        "star                              86.38 %              yes    2        15",
        "896 of 65,536 pairs apart",
    ],
}


@pytest.fixture
def program(load, monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLES / "theory"))
    return lambda name: load(f"theory/{name}")


def test_there_is_a_line_for_every_program():
    assert sorted(PRINTED) == [path.stem for path in sorted((EXAMPLES / "theory").glob("*.py"))]


@pytest.mark.parametrize("name", PRINTED)
def test_a_program_holds_what_it_states_and_prints_it(name, program, capsys):
    program(name).main()
    shown = capsys.readouterr().out
    for line in PRINTED[name]:
        assert line in shown


def test_a_path_is_found_where_there_is_one_and_masks_that_never_connect_say_so(program):
    patterns = program("5_sparse_patterns")
    ring = torch.eye(6, dtype=torch.bool) | torch.eye(6).roll(2, 0).bool()  # 0 2 4 and 1 3 5: apart
    assert patterns.check_pattern([ring[None]])[:3] == (True, None, None)
    ring[3, 4] = True
    assert patterns.check_pattern([ring[None]]).path == [0, 2, 4, 3, 5, 1]
    causal = patterns.pattern_masks("fixed", 64, causal=True, stride=8)
    assert (
        patterns.check_pattern(causal).hops,
        patterns.check_pattern(causal, causal=True).hops,
    ) == (None, 2)
