"""Gates: what is accepted, which slice a name means, and what is over, by a comparison of real models and by hand."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit import builtin, cli
from recallkit.attribution.gates import NOT_BEHIND, Gate, failure_line, judge_gates, parse_gate, resolve_gates
from recallkit.errors import UsageError, UserError
from recallkit.measure.labelled import open_scores, open_tokens
from recallkit.measure.shares import GAP_MAY_BE_ZERO, NO_GAP, gap_intervals
from recallkit.measure.sums import add_up
from recallkit.scoring import score_path
from recallkit.slicing.definitions import parse_slices


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("0.05", Gate("ar_hit", 0.05, False)),
        ("30%", Gate("ar_hit", 0.3, True)),
        ("all=.02", Gate("all", 0.02, False)),
        ("AR hits = 12.5 %", Gate("AR hits", 0.125, True)),
        ("copy:k4=1e-3", Gate("copy:k4", 0.001, False)),
        ("repeated=150%", Gate("repeated", 1.5, True)),
    ],
)
def test_a_gate_is_a_slice_and_a_limit(given, expected):
    assert parse_gate(given) == expected


@pytest.mark.parametrize("given", ["nan", "inf", "-inf", "1e999", "-0.1", "all=-1%", "all=", "=", "", "all", "0.1 nats"])
def test_what_could_never_fire_or_is_no_number_is_refused(given):
    with pytest.raises(ValueError, match="is not a gate"):
        parse_gate(given)


def test_slices_are_named_as_in_tables_or_as_printed():
    given = parse_slices(["first_rare", "Far=distance > 10"])
    gates = [parse_gate(each) for each in ("AR hits=1", "Repeated=1%", "first rare=2", "Far=3", "ar_hit=1")]
    found = resolve_gates(gates, given)
    assert [str(gate) for gate in found] == ["ar_hit=1", "repeated=1%", "first_rare=2", "Far=3"], "the same gate counts once"
    with pytest.raises(UsageError, match=r"first_frequent=1: no such slice.*all, ar_hit, other, repeated, first_rare, Far"):
        resolve_gates([parse_gate("first_frequent=1")], given)
    with pytest.raises(UsageError, match="by definition"):
        resolve_gates([parse_gate("all=50%")], given)


@pytest.fixture
def gap(home, capsys, small_slices, tmp_path):
    """`recallkit gap MODELS... --json` on small slices: (status, JSON, stderr)."""

    def call(*words):
        with pytest.raises(SystemExit) as stopped:
            cli.run(["gap", *map(str, words), "--slices", str(small_slices), "-o", str(tmp_path / "gap"), "--force", "--json"])
        told = capsys.readouterr()
        return int(stopped.value.code or 0), json.loads(told.out) if told.out else None, told.err

    return call


def test_each_gate_is_judged_by_its_own_measure(gap):
    models = ["control:bigram", "control:recall", "control:unigram", "--slice", "first_rare"]
    status, found, _ = gap(*models)
    assert (status, found["gates"]) == (0, [])
    rows = {(row["model"], row["slice"]): row for row in found["gap"] if row["source"] == "ALL"}
    low, high = "control:recall", "control:unigram"
    nats = {model: rows[model, "first_rare"]["delta_nll"] for model in (low, high)}
    shares = {model: rows[model, "other"]["gap_share"] for model in nats}
    assert 0 < nats[low] < nats[high]
    assert shares[low] > shares[high] > 0
    largest = 100 * max(shares.values())
    of = rows[high, "first_rare"]
    told = of["delta_nll"] - 2 * (of["delta_nll"] - of["delta_ci_low"])  # twice as far from the value as the end of its interval
    assert told > nats[low]
    status, found, err = gap(*models, "--fail-above", f"first_rare={told}", "--fail-above", f"other={largest + 1e-6}%")
    assert status == 1
    assert [(gate["model"], gate["slice"], gate["measured"], gate["is_over"]) for gate in found["gates"]] == [
        (low, "first_rare", "delta_nll", False),
        (high, "first_rare", "delta_nll", True),
        (low, "other", "gap_share", False),
        (high, "other", "gap_share", False),
    ]
    assert [gate["value"] for gate in found["gates"]] == [*nats.values(), *shares.values()]
    assert err.splitlines()[-1].startswith(f"recallkit: {high}: NLL on first_rare ")
    assert low not in err.splitlines()[-1]

    of = rows[low, "other"]
    told = of["gap_share"] - 2 * (of["gap_share"] - of["ci_low"])
    assert told > 0
    status, _, err = gap(*models, "--fail-above", f"Other={100 * told}%")
    assert status == 1
    assert f"{low}: {largest:.1f} % of the gap lies in other, more than " in err.splitlines()[-1]
    status, _, err = gap(*models, "--fail-above", f"Other={largest - 1e-6}%")
    assert status == 0, "more than that, but not by its interval"


def test_a_share_of_no_gap_or_of_a_lead_is_not_judged_and_said_to_be_so(gap):
    status, found, _ = gap("control:recall", "control:bigram", "--fail-above", "0%", "--fail-above", "all=0")
    assert status == 0
    assert [(gate["value"], gate["note"]) for gate in found["gates"][:1]] == [(None, NOT_BEHIND)]
    assert found["gates"][1]["value"] < 0
    status, found, _ = gap("a=control:recall", "b=control:recall", "--fail-above", "0%", "--fail-above", "0")
    assert (status, found["gates"][0]["note"], found["gates"][1]["value"]) == (0, NO_GAP, 0)


NO_INTERVALS = dict.fromkeys(("delta_ci_low", "delta_ci_high", "ci_low", "ci_high", "effective_clusters"))


def test_a_gate_is_crossed_where_it_is_told_over_all_models_of_it():
    """One model alone by its interval; of ten that are as little above the limit none, since one of ten would be by chance."""
    low = {"source": "ALL", "void": False, "note": "", "gap_share": 0.5, "ci_low": 0.3, "ci_high": 0.7, "effective_clusters": 40.0}
    above = {**low, "slice": "ar_hit", "delta_nll": 0.30, "delta_ci_low": 0.11, "delta_ci_high": 0.49}
    far = {**above, "delta_nll": 0.9, "delta_ci_low": 0.71, "delta_ci_high": 1.09}

    def over(*rows: dict) -> list[bool]:
        every = [{**row, "model": f"m{number}", "slice": name} for number, row in enumerate(rows) for name in ("ar_hit", "all")]
        return [verdict.is_over for verdict in judge_gates([parse_gate("0.1")], type("Tables", (), {"gap": pl.DataFrame(every)}))]

    assert over(above) == [True]
    assert over({**above, "delta_ci_low": 0.09}) == [False], "above, but not by its interval"
    assert over(*[above] * 10) == [False] * 10
    assert over(far, *[above] * 9) == [True, *[False] * 9]
    assert over(*[far] * 10) == [True] * 10
    assert over({**above, **NO_INTERVALS}) == [True], "without an interval the value decides"


def test_nan_is_over_every_gate_and_no_tokens_are_no_judgement():
    row = {"source": "ALL", "model": "m", "void": False, "note": "", "gap_share": math.nan, **NO_INTERVALS}
    of_all = {**row, "slice": "all", "delta_nll": math.nan}
    hits, none = ({**row, "slice": name, "delta_nll": value} for name, value in (("ar_hit", math.nan), ("other", None)))
    of_source = {**hits, "delta_nll": -1.0, "gap_share": -1.0}  # a source that is called ALL comes after the totals
    tables = type("Tables", (), {"gap": pl.DataFrame([of_all, hits, none, of_source])})
    found = judge_gates([parse_gate("1000"), parse_gate("1000%")], tables)
    assert [verdict.is_over for verdict in found] == [True, True]
    assert failure_line([found[0]] * 5).endswith("; and 2 more (see --json)")
    assert "see --json" not in failure_line([found[0]] * 3)
    with pytest.raises(UserError, match="no tokens of other to judge by"):
        judge_gates([parse_gate("other=1")], tables)


def test_a_share_that_means_nothing_is_not_judged_however_large():
    row = {"source": "ALL", "model": "m", "void": True, "note": GAP_MAY_BE_ZERO, "gap_share": 9.0, "delta_nll": 0.5, **NO_INTERVALS}
    tables = type("Tables", (), {"gap": pl.DataFrame([{**row, "slice": "all"}, {**row, "slice": "ar_hit"}])})
    share, nats = judge_gates([parse_gate("10%"), parse_gate("0.4")], tables)
    assert (share.value, share.is_over, share.note) == (None, False, GAP_MAY_BE_ZERO)
    assert (nats.value, nats.is_over) == (0.5, True)


def test_of_ten_models_without_a_gap_one_is_told_from_zero_in_one_command_of_twenty(home, tmp_path):
    """On real text: in each of 150 commands the documents' gaps get signs at random, for each model anew, so that all gaps are zero."""
    slices = tmp_path / "slices"
    shutil.copytree(builtin.slices(), slices)
    recallkit.score(("control:recall", "control:bigram"), slices=slices)
    tokens = open_tokens(slices / "tokens.parquet")
    paths = [score_path(slices, name) for name in ("control:recall", "control:bigram")]
    sums = add_up(tokens, [open_scores(path, tokens) for path in paths], every_table=False).tables["slices"].at(np.array([0]))
    gaps, rng, told = sums.nlls[1] - sums.nlls[0], np.random.default_rng(0), []
    for seed in range(150):
        signs = rng.choice([-1.0, 1.0], (10, len(gaps), 1))
        models = replace(sums, nlls=np.concatenate([np.zeros((1, *gaps.shape)), signs * gaps]))
        found = gap_intervals({"slices": models}, {}, num_resamples=600, seed=seed)["slices"]
        low, high = found.delta_nll[:, :, 0]
        told.append((found.is_distinct.any(), ((low > 0) | (high < 0)).any()))
    by_holm, by_intervals = np.mean(told, axis=0)
    assert by_holm <= 0.095  # 0.05 and two and a half standard errors of 150 commands
    assert by_intervals >= 0.2
