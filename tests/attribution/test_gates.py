"""Gates: what is accepted, which slice a name means, what is over, and that tables and gates cannot
disagree."""

import math

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.attribution.gates import (
    NOT_BEHIND,
    Gate,
    failure_line,
    judge_gates,
    parse_gate,
    resolve_gates,
    unjudged_lines,
)
from recallkit.attribution.tables import attribute_gap
from recallkit.errors import UsageError, UserError
from recallkit.slicing.definitions import parse_slices
from tests.attribution.corpus import Corpus, Model, compared


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


@pytest.mark.parametrize(
    "given", ["nan", "inf", "-inf", "1e999", "-0.1", "all=-1%", "all=", "=", "", "all", "0.1 nats"]
)
def test_what_could_never_fire_or_is_no_number_is_refused(given):
    with pytest.raises(ValueError, match="is not a gate"):
        parse_gate(given)


def test_slices_are_named_as_in_tables_or_as_printed():
    requested = parse_slices(["first_rare", "Far=distance > 10"])
    gates = [
        parse_gate(gate)
        for gate in ("AR hits=1", "Repeated=1%", "first rare=2", "Far=3", "ar_hit=1")
    ]
    names = [str(gate) for gate in resolve_gates(gates, requested)]
    assert names == ["ar_hit=1", "repeated=1%", "first_rare=2", "Far=3"], (
        "the same gate counts once"
    )
    with pytest.raises(
        UsageError,
        match=r"first_frequent=1: no such slice.*all, ar_hit, other, repeated, first_rare, Far",
    ):
        resolve_gates([parse_gate("first_frequent=1")], requested)
    with pytest.raises(UsageError, match="by definition"):
        resolve_gates([parse_gate("all=50%")], requested)


def judged(tables, *gates):
    return judge_gates([parse_gate(gate) for gate in gates], tables)


@settings(max_examples=15)
@given(st.integers(0, 10**6), st.integers(4, 14), st.booleans())
def test_gates_and_tables_cannot_disagree(tmp_path_factory, seed, documents, dominated):
    """Of random gaps, of equal documents or of one with more of the gap than all others
    together."""
    rng = np.random.default_rng(seed)
    tokens = [(d, p, "web", 1 if p == 2 else None, 5) for d in range(documents) for p in (1, 2)]
    corpus = Corpus(tmp_path_factory.mktemp("text"), tokens)
    weights = np.where(np.arange(documents), 1, 40 if dominated else 1)[:, None]
    paths = [corpus.score("ref", np.full(2 * documents, 9.0))]
    for name in "mno":
        more = rng.normal(rng.normal(0, 0.03), 0.05, (documents, 2)) * weights
        paths.append(corpus.score(name, 9.0 + more))
    tables = attribute_gap(corpus.path, paths[0], paths[1:], num_resamples=200)
    rows = {(row["model"], row["slice"]): row for row in tables.gap.filter(source="ALL").to_dicts()}
    for slice_ in ("all", "ar_hit"):
        for verdict in judged(tables, f"{slice_}=0"):
            row = rows[verdict.model, slice_]
            assert (verdict.value, verdict.note) == (row["delta_nll"], "")
            # Without an interval the value alone decides.
            assert verdict.is_over == (row["delta_nll"] > 0 and row["is_distinct"] is not False), (
                row
            )
            assert (
                (row["is_distinct"] is None) == (documents < 5) == (row["delta_nll_ci_low"] is None)
            )
    for model in "mno":
        alone = tables.gap.filter(model=model)
        row, whole = rows[model, "ar_hit"], rows[model, "all"]
        alone = type(tables)(**{**tables.frames(), "gap": alone})
        [verdict] = judged(alone, "0%")
        is_judged = not row["void"] and whole["delta_nll"] > 0
        assert (verdict.value is not None) == is_judged
        assert verdict.is_over == (
            is_judged and row["gap_share"] > 0 and row["gap_share_ci_low"] >= 0
        )


HALF = Model(0.2, other=2 * math.log(2.5) / 5)
LINES = {
    "behind": (
        HALF, ["0.5", "30%"],
        ("m: NLL on ar_hit is 0.9163 nats above the reference's (limit 0.5); m: ar_hit carries "
            "50.0 % of the gap (limit 30 %)"), [],
    ),
    "not so far": (HALF, ["1", "60%", "all=0.5"], None, []),
    "ahead": (Model(0.8), ["0", "30%"], None, [("--fail-above ar_hit=30%: not judged for m: "
        f"{NOT_BEHIND}")]),
    "ahead, but behind on AR hits": (
        Model(0.4, other=-0.4), ["0", "0%"], ("m: NLL on ar_hit is 0.2231 nats above the "
            "reference's (limit 0)"),
        [f"--fail-above ar_hit=0%: not judged for m: {NOT_BEHIND}"],
    ),
    "may be zero": (
        Model(hit_spread=0.5, other_spread=-1), ["0", "0%"], None,
        [("--fail-above ar_hit=0%: not judged for m: the overall gap cannot be distinguished "
            "from zero")],
    ),
    "a copy": (Model(), ["0", "0%"], None, [("--fail-above ar_hit=0%: not judged for m: no gap "
        "overall")]),
}  # fmt: skip


@pytest.mark.parametrize("case", LINES)
def test_gates_say_what_is_above_them_and_what_is_not_judged(tmp_path, case):
    model, gates, failure, unjudged = LINES[case]
    verdicts = judged(compared(tmp_path, {"m": model}).tables, *gates)
    assert failure_line(verdicts) == failure
    assert unjudged_lines(verdicts) == unjudged


NO_INTERVALS = {
    f"{name}_ci_{end}": None for name in ("delta_nll", "gap_share") for end in ("low", "high")
}
ROW = {
    "source": "ALL",
    "void": False,
    "note": "",
    "delta_freedom": 39.0,
    "share_freedom": 39.0,
    "gap_share": 0.5,
    **NO_INTERVALS,
}


def tables_of(*models):
    """Rows of all tokens and of AR hits alike, of models with these figures."""
    rows = [
        {**ROW, "model": f"m{number}", "slice": name, **figures}
        for number, figures in enumerate(models)
        for name in ("all", "ar_hit")
    ]
    return type("Tables", (), {"gap": pl.DataFrame(rows)})


def test_a_gate_is_crossed_where_it_is_told_over_all_models_of_it():
    """One model alone by its interval; of ten that are as little above the limit none, since one of
    ten would be by chance."""
    above = {"delta_nll": 0.30, "delta_nll_ci_low": 0.11, "delta_nll_ci_high": 0.49}
    far = {"delta_nll": 0.9, "delta_nll_ci_low": 0.71, "delta_nll_ci_high": 1.09}

    def over(*models):
        return [verdict.is_over for verdict in judged(tables_of(*models), "0.1")]

    assert over(above) == [True]
    assert over({**above, "delta_nll_ci_low": 0.09}) == [False], "above, but not by its interval"
    assert over(*[above] * 10) == [False] * 10
    assert over(far, *[above] * 9) == [True, *[False] * 9]
    assert over(*[far] * 10) == [True] * 10
    assert over({"delta_nll": 0.3}) == [True], "without an interval the value decides"


def test_nan_is_over_every_gate_and_no_tokens_are_no_judgement():
    verdicts = judged(tables_of({"delta_nll": math.nan, "gap_share": math.nan}), "1000", "1000%")
    assert [verdict.is_over for verdict in verdicts] == [True, True]
    assert failure_line(verdicts[:1] * 5).endswith("; and 2 more (see --json)")
    assert "see --json" not in failure_line(verdicts[:1] * 3)
    with pytest.raises(UserError, match="no tokens of ar_hit to judge by"):
        judged(tables_of({"delta_nll": None}), "1")
    share, nats = judged(
        tables_of({"delta_nll": 0.5, "gap_share": 9.0, "void": True, "note": "why"}), "10%", "0.4"
    )
    assert share.to_json() == {
        "gate": "ar_hit=10%", "slice": "ar_hit", "measured": "gap_share", "limit": 0.1,
        "model": "m0", "value": None, "is_over": False, "note": "why",
    }  # fmt: skip
    assert (nats.value, nats.is_over) == (0.5, True)


def test_the_command_fails_where_a_gate_is_crossed(run, small_slices, tmp_path):
    options = ("--slices", small_slices, "-o", tmp_path / "gap")
    command = ("gap", "control:bigram", "control:unigram", *options)
    crossed = run(*command, "--fail-above", "all=0", "--fail-above", "Other=200%")
    assert crossed.returncode == 1
    assert crossed.stderr.splitlines()[-1].startswith("recallkit: control:unigram: NLL on all ")
    assert run(*command, "--fail-above", "all=99").returncode == 0
