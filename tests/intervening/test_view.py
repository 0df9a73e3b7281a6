"""What is said of models of which it is known what they recall, and of every truth that points,
shares and gaps can tell."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import recallkit
from recallkit.intervening.tables import InterveneTables
from recallkit.intervening.view import InterventionView, answer, causal_recall
from tests.known_truth import PATH

REFERENCE = "bigram_cache"
NOT_RECALLING = ("presence", "window", "bigram", "worse", "worse_at_rare")
PATHS = {name: f"{name}={PATH}:{name}" for name in (REFERENCE, "unigram_cache", *NOT_RECALLING)} | {
    "twin": f"twin={PATH}:{REFERENCE}"
}


@pytest.fixture(scope="module")
def sliced(home, short_text, tmp_path_factory) -> Path:
    """Short passages of many documents: real text."""
    folder = tmp_path_factory.mktemp("known") / "slices"
    recallkit.slice(
        short_text(48, 350), out=folder, counts=recallkit.zoo_counts(), max_count=5, seq_len=256
    )
    return folder


@pytest.fixture(scope="module")
def known(sliced, tmp_path_factory) -> tuple[Path, InterveneTables]:
    """The folder and the tables of models with a known truth."""
    out = tmp_path_factory.mktemp("tables")
    return out, recallkit.intervene(
        [*PATHS.values()], slices=sliced, out=out, samples=40, slice=["ar_hit"], changes="all"
    )


def test_presence_is_no_recall_and_a_cache_is(known):
    """In nats and in points, and in what is retained; only `presence` makes any other use of the
    earlier occurrences."""
    rows = causal_recall(known[1])
    for name in NOT_RECALLING:
        # ids move into its window, and out of it
        assert rows[name]["recall"] == pytest.approx(0, abs=0.25 if name == "window" else 0.05)
        assert rows[name]["points"] == pytest.approx(0, abs=0.002)
        assert rows[name]["retained"] == pytest.approx(0, abs=0.01)
        assert (rows[name]["use"] > 1) == (name in ("presence", "window"))
    for name in (REFERENCE, "unigram_cache"):
        assert rows[name]["recall_ci_low"] > 1
        assert rows[name]["points_ci_low"] > 0.05
    assert rows["unigram_cache"]["retained"] == pytest.approx(1, abs=0.02), "the same cache"
    assert rows["unigram_cache"]["recall"] < rows[REFERENCE]["recall"] - 0.2, (
        "but over another base, to which nats are relative"
    )


def test_the_same_model_retains_all_though_its_gap_has_no_shares(known):
    folder, tables = known
    twin = causal_recall(tables)["twin"]
    assert [twin[f"retained{end}"] for end in ("", "_ci_low", "_ci_high")] == [1, 1, 1]
    assert (twin["void"], twin["gap"]) == (True, 0)
    seen = InterventionView(folder, tables)
    assert "twin: no meaningful share of the gap: no gap overall" in seen.notes()
    assert "no share is meaningful for twin" in seen.answer()
    assert "is not shown to exceed 0.1 points" not in seen.answer()
    assert f"no significant recall: {', '.join(NOT_RECALLING[:4])} and 1 more" in seen.answer()


def test_what_a_model_retains_does_not_depend_on_the_others(known, sliced, tmp_path):
    alone = recallkit.intervene(
        [PATHS[REFERENCE], PATHS["unigram_cache"]],
        slices=sliced,
        out=tmp_path,
        samples=40,
        slice=["ar_hit"],
    )
    [few, many] = (causal_recall(tables)["unigram_cache"] for tables in (alone, known[1]))
    same = [name for name in few if name.startswith(("retained", "points", "causal_share", "gap"))]
    assert len(same) == 10
    assert {name: few[name] for name in same} == {name: many[name] for name in same}


BROKEN = "When earlier occurrences of a rare bigram are broken up"
LOST = f"{BROKEN}, r loses 41.5 points of probability (39.0 to 44.0)"
R, M = (0.415, 0.39, 0.44), (0.034, 0.02, 0.05)
EIGHT, SHARE, NONE = (0.08, 0.05, 0.12), (0.346, 0.3, 0.4), (None, None, None)
CASES = {
    "behind": (
        {"r": (R,), "m": (M, EIGHT, 0.5, SHARE)},
        f"{LOST}, m 3.4 (2.0 to 5.0): m retains 8 % (5 to 12) of r's causal recall. "
        "The difference in nats is 34.6 % (30.0 to 40.0) of the gap.",
    ),
    "ahead, and recalls less": (
        {"r": (R,), "m": (M, EIGHT, -0.5, (-0.4, -0.6, -0.2))},
        f"{LOST}, m 3.4 (2.0 to 5.0): m retains 8 % (5 to 12) of r's causal recall. "
        "The difference in nats is -40.0 % (-60.0 to -20.0) of the gap. Shares of a lead, not a "
        "gap: m.",
    ),
    "above 100 %": (
        {"r": (R,), "m": ((0.5, 0.45, 0.55), (1.2, 1.1, 1.3), 0.1, (-1.5, -2, -1.2))},
        f"{LOST}, m 50.0 (45.0 to 55.0): m retains 120 % (110 to 130) of r's causal recall. "
        "The difference in nats is -150.0 % (-200.0 to -120.0) of the gap.",
    ),
    "without a gap": (
        {"r": (R,), "m": (M, EIGHT, 0.0, NONE)},
        f"{LOST}, m 3.4 (2.0 to 5.0): m retains 8 % (5 to 12) of r's causal recall.",
    ),
    "a reference that recalls nothing": (
        {"r": ((0.001, -0.01, 0.02),), "m": (M, NONE, 0.5, SHARE)},
        f"{BROKEN}, r loses 0.1 points of probability (-1.0 to 2.0), m 3.4 (2.0 to 5.0): "
        "r's causal recall is not shown to exceed 0.1 points, so what is retained is unknown. "
        "The difference in nats is 34.6 % (30.0 to 40.0) of the gap.",
    ),
    "few documents": (
        {"r": ((0.415, None, None),), "m": ((0.034, None, None), NONE, 0.5, NONE)},
        f"{BROKEN}, r loses 41.5 points of probability, m 3.4: "
        "r's causal recall is not shown to exceed 0.1 points, so what is retained is unknown.",
    ),
    "alone": ({"r": (R,)}, f"{LOST}."),
    "several": (
        {
            "r": (R,),
            "m": (M, EIGHT, 0.5, SHARE),
            "less": ((-0.01, -0.02, 0.01), (-0.02, -0.05, 0.02), 0.9, (1.3, 1.1, 1.5)),
            "more": ((0.5, 0.45, 0.55), (1.2, 1.1, 1.3), -0.1, (0.2, 0.1, 0.3)),
            "like": (R, (1.0, 1.0, 1.0), 0.0, NONE),
        },
        f"{LOST}, the other 4 models -1.0 (less) to 50.0 (more): they retain -2 % (less) to 120 % "
        "(more) of r's causal recall; no significant recall: less. The difference in nats is "
        "20.0 % (more) to 130.0 % (less) of the gap; no share is meaningful for like. Shares of "
        "a lead, not a gap: more.",
    ),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("control", [None, 0.003])
def test_every_truth_has_its_sentence(case, control):
    """Nobody is dropped or clipped; a share without an interval means nothing; the control is said
    where it is known."""
    figures, expected = CASES[case]
    lost, retained = [], []
    for model, (points, *more) in figures.items():
        slices = ("ar_hit", "first_rare")
        lost += [{"model": model, "slice": slice_, **ends("points", points)} for slice_ in slices]
        for slice_ in slices if more else ():
            recall, gap, share = more
            share = share if slice_ == "ar_hit" else (control, -0.01, 0.02)
            row = {"model": model, "slice": slice_, "gap": gap, "void": None in share}
            retained.append({**row, **ends("retained", recall), **ends("causal_share", share)})
    schema = {
        name: pl.Float64 for column in ("retained", "causal_share") for name in ends(column, NONE)
    }
    frame = pl.DataFrame(
        retained,
        schema={
            "model": pl.String,
            "slice": pl.String,
            "gap": pl.Float64,
            "void": pl.Boolean,
            **schema,
        },
    )
    tables = InterveneTables(pl.DataFrame(lost, strict=False), frame.clear(), frame.clear(), frame)
    if control is not None:
        figure = "0.3 %" if len(figures) > 2 else "0.3 % (-1.0 to 2.0)"
        expected = expected.replace(
            " of the gap", f" of the gap; at rare first occurrences (control), {figure}"
        )
    assert answer(tables) == expected


def ends(name: str, values: tuple[float | None, ...]) -> dict[str, float | None]:
    return dict(zip((name, f"{name}_ci_low", f"{name}_ci_high"), values, strict=True))
