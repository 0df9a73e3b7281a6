"""Operations beside their peers: what is compared computes the same, and figures are what their definitions say."""

from __future__ import annotations

import math

import pytest
import torch

from recallkit.bench import operations
from recallkit.bench.cases import OPERATIONS
from recallkit.bench.operations import COPY, MATRIX, MICROSECONDS, Case, Setting, measure_case
from recallkit.bench.results import Results, Row
from recallkit.bench.timing import Ceilings, Timing
from tests.conftest import ROOT
from tests.kernels.checks import relative_error

CPU = Setting(torch.device("cpu"), torch.float32, quick=True)
OTHER_FUNCTIONS = {("taylor_attention", "SDPA"), ("window_attention", "SDPA")}
"""Attention to everything stands beside what replaces it; it is no other way to compute the same."""


def test_every_operation_is_measured():
    packages = {path.parent.name for path in (ROOT / "kernels").glob("*/api.py")}
    measured = {name.removesuffix("_step").removesuffix("_attention") for name in OPERATIONS}
    assert {package.removesuffix("_attention") for package in packages} == measured


@pytest.mark.parametrize("name", OPERATIONS)
def test_peers_compute_the_same(name):
    case = next(OPERATIONS[name](CPU))
    inputs = case.make()
    with torch.inference_mode():
        results = {who: run(*(x.clone() for x in inputs)) for who, run in case.runs.items() if (name, who) not in OTHER_FUNCTIONS}
    results = {who: result[0] if isinstance(result, tuple) else result for who, result in results.items()}
    (first, wanted), *others = results.items()
    assert first == "recallkit (torch)"
    assert others or {who for _, who in OTHER_FUNCTIONS} >= set(case.runs) - {first}
    for who, result in others:
        assert relative_error(result.reshape(wanted.shape), wanted) < 1e-4, who


def made_up(times: dict[str, Timing], monkeypatch, *, flops: float = 0.0, num_bytes: float = 80.0) -> list[Row]:
    monkeypatch.setattr(operations, "compare", lambda calls, device, repeats, graph: times)
    case = Case("op", {"n": 3}, lambda: (torch.zeros(1),), dict.fromkeys(times, print), flops=flops, num_bytes=num_bytes)
    return measure_case(case, CPU, Ceilings(copy=100.0, matrix=1000.0), 1)[0]


def test_rates_shares_and_ratios_follow_from_the_times(monkeypatch):
    times = {"recallkit (torch)": Timing(2.0, 1.0, 3.0), "peer": Timing(5.0, 5.0, 5.0), "absent": Timing(problem="not installed")}
    ours, peer, absent = made_up(times, monkeypatch)
    assert (ours.rate, ours.unit, ours.share, ours.ratio) == (40.0, "B/s", 0.4, 1.0)
    assert (peer.rate, peer.share, peer.ratio) == (16.0, 0.16, 2.5)
    assert (absent.rate, absent.share, absent.ratio, absent.problem) == (None, None, None, "not installed")
    assert math.isnan(absent.seconds)


def test_what_takes_longer_at_the_ceilings_is_what_binds(monkeypatch):
    (row,) = made_up({"recallkit (torch)": Timing(2.0, 2.0, 2.0)}, monkeypatch, flops=900.0)
    assert (row.unit, row.rate, row.share) == ("FLOP/s", 450.0, 0.45)


def test_without_our_time_there_is_no_ratio(monkeypatch):
    ours, peer = made_up({"recallkit (torch)": Timing(problem="failed: so"), "peer": Timing(1.0, 1.0, 1.0)}, monkeypatch)
    assert peer.ratio is None
    assert ours.is_ours_and_failed
    assert not peer.is_ours_and_failed
    assert Results({}, [ours, peer]).failure_line() == f"failed: recallkit (torch), {ours.benchmark}; the reason is given with each"
    assert Results({}, [peer]).failure_line() is None
    ours, peer = made_up({"recallkit (torch)": Timing(problem="out of memory"), "peer": Timing(problem="failed: so")}, monkeypatch)
    assert not ours.is_ours_and_failed
    assert not peer.is_ours_and_failed


def test_inputs_that_do_not_fit_are_rows():
    def make():
        raise torch.OutOfMemoryError

    case = Case("op", {"n": 3}, make, {"recallkit (torch)": print, "peer": print}, 1.0)
    rows, _ = measure_case(case, CPU, Ceilings(1.0, 1.0), 1)
    assert [(row.implementation, row.problem) for row in rows] == [("recallkit (torch)", "out of memory"), ("peer", "out of memory")]


def test_targets_are_met_missed_or_not_measured():
    rows = [
        Row("op", {"n": 3}, "recallkit (triton)", 1.0, 1.0, 1.0, share=0.55, ratio=1.0),
        Row("op", {"n": 3}, "peer", 3.0, 3.0, 3.0, ratio=3.0),
        Row("op", {"n": 3}, "absent", math.nan, math.nan, math.nan, problem="not installed"),
    ]
    targets = {COPY: 0.5, MATRIX: 0.6, "peer": 4.0, "absent": 2.0, MICROSECONDS: 1500.0}
    case = Case("op", {"n": 3}, tuple, {}, 1.0, targets=targets)
    assert operations._verdicts(case, rows) == [
        "op n=3: 50 % of the copy rate: met (0.55)",
        "op n=3: 60 % of the matrix rate: MISSED (0.55)",
        "op n=3: 4 times as fast as peer: MISSED (3)",
        "op n=3: 2 times as fast as absent: not measured",
        "op n=3: at most 1500 microseconds: MISSED (1e+06)",
    ]
