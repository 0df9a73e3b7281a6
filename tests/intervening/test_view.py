"""What is said of models of which it is known what they recall, and of every sign that a gap, a share and a difference can have."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import recallkit
from recallkit.intervening.tables import InterveneTables
from recallkit.intervening.view import look
from recallkit.storage import artifacts
from tests.known_truth import PATH

REFERENCE = "bigram_cache"
MODELS = (REFERENCE, "unigram_cache", "presence", "window", "bigram", "worse", "worse_at_rare")


@pytest.fixture(scope="module")
def known(home, short_text, tmp_path_factory) -> tuple[Path, InterveneTables]:
    """The folder and the tables of models with a known truth, of real text: short passages of many documents."""
    folder, out = tmp_path_factory.mktemp("known") / "slices", tmp_path_factory.mktemp("tables")
    recallkit.slice(short_text(48, 350), out=folder, counts=recallkit.zoo_counts(), max_count=5, seq_len=256)
    models = [f"{name}={PATH}:{name}" for name in MODELS]
    tables = recallkit.intervene(models, slices=folder, out=out, samples=40, slice=["ar_hit"], changes="all")
    [samples] = folder.glob("intervene/text-*/samples.parquet")
    samples.rename(out / "samples.parquet")
    return out, tables


def test_presence_is_no_recall_and_a_cache_is(known):
    """In nats and in points; only `presence` makes any other use of the earlier occurrences."""
    _, tables = known
    rows = {row["model"]: row for row in tables.intervene.filter(slice="ar_hit").iter_rows(named=True)}
    for name in ("presence", "window", "bigram", "worse", "worse_at_rare"):
        assert rows[name]["recall"] == pytest.approx(0, abs=0.25 if name == "window" else 0.05)  # ids move into its window, and out of it
        assert rows[name]["points"] == pytest.approx(0, abs=0.002)
        assert (rows[name]["use"] > 1) == (name in ("presence", "window"))
    for name in ("bigram_cache", "unigram_cache"):
        assert rows[name]["recall_ci_low"] > 1
        assert rows[name]["points_ci_low"] > 0.05
    assert rows["unigram_cache"]["points"] == pytest.approx(rows["bigram_cache"]["points"], abs=0.005), "the same cache"
    assert rows["unigram_cache"]["recall"] < rows["bigram_cache"]["recall"] - 0.2, "but over another base, to which nats are relative"


def test_each_is_described_as_what_it_is(known):
    folder, tables = known
    said, none = {}, tables.recall_share.clear()
    for model in MODELS[1:]:
        pair = {name: frame.filter(pl.col("model").is_in([REFERENCE, model])) for name, frame in frames(tables).items()}
        said[model] = look(folder, InterveneTables(**pair)).answer
    for model in ("presence", "window", "bigram", "worse", "worse_at_rare"):
        assert f"{model} is behind {REFERENCE}: " in said[model]
        assert "%) would be gone if neither could recall" in said[model]
        assert f"{model} recalls less: 0.0 points of probability, {REFERENCE} 2" in said[model]
    assert "unigram_cache and bigram_cache are not shown to recall differently: 2" in said["unigram_cache"]
    assert "recalls less" not in said["unigram_cache"]
    alone = InterveneTables(**{name: frame.filter(model="presence") for name, frame in frames(tables).items()} | {"recall_share": none})
    of_one = look(folder, alone).answer
    assert of_one.startswith("presence is not shown to recall by association in AR hits: 0.0 points of probability, ")
    cache = InterveneTables(**{name: frame.filter(model=REFERENCE) for name, frame in frames(tables).items()})
    assert look(folder, cache).answer.startswith("bigram_cache recalls by association in AR hits: 2")


def frames(tables: InterveneTables) -> dict[str, pl.DataFrame]:
    return {name: getattr(tables, name) for name in ("intervene", "by_distance", "by_count", "recall_share")}


SHARES = {
    "gone": (0.4, 0.2, 0.6, "40.0 % (20.0 to 60.0 %) would be gone"),
    "larger": (-0.4, -0.6, -0.2, "it would be 40.0 % larger (20.0 to 60.0 %)"),
    "unknown": (0.1, -0.1, 0.3, "it is not shown to be smaller or larger (-10.0 to 30.0 % gone)"),
}
POINTS = {
    "less": (-0.2, -0.3, -0.1, "m recalls less: 10.0 points of probability, r 30.0."),
    "more": (0.2, 0.1, 0.3, "m recalls more: 10.0 points of probability, r 30.0."),
    "alike": (-0.2, -0.5, 0.1, "m and r are not shown to recall differently: 10.0 and 30.0 points of probability."),
    "few": (-0.2, None, None, "m recalls 10.0 points of probability, r 30.0, of too few documents to compare them."),
}


@pytest.mark.parametrize(
    ("gap", "share", "points", "void"),
    [
        *((gap, share, "alike", False) for gap in (0.5, -0.5) for share in SHARES),
        *((gap, "gone", points, void) for gap, void in ((0.5, True), (-0.5, False), (-0.5, True)) for points in POINTS),
    ],
)
def test_every_sign_has_its_sentence(known, gap, share, points, void):
    """Behind or ahead; what would be gone, added, or neither for all that is known; recalls less, more, or neither; void shares."""
    folder, tables = known
    (value, low, high, would), (differ, least, most, recalls) = SHARES[share], POINTS[points]
    row = tables.recall_share.filter(model="unigram_cache", slice="ar_hit").row(0, named=True)
    row |= {"reference": "r", "model": "m", "gap": gap, "gap_share": 0.25, "void": void, "note": "no gap" * void}
    row |= {"recall_share": value, "recall_share_ci_low": low, "recall_share_ci_high": high}
    row |= {"points_difference": differ, "points_difference_ci_low": least, "points_difference_ci_high": most}
    asked = tables.intervene.filter(slice="ar_hit").head(2).with_columns(model=pl.Series(["r", "m"]), points=pl.Series([0.3, 0.1]))
    made = InterveneTables(asked, tables.by_distance.clear(), tables.by_count.clear(), pl.DataFrame([row], tables.recall_share.schema))
    seen = look(folder, made)
    called = "the gap" if gap > 0 else "its lead"
    place = "behind" if gap > 0 else "ahead of"
    of_gap = f"m is {place} r: 25.0 % of {called} lies in AR hits, and {would} if neither could recall by association there."
    assert seen.answer == (recalls if void else f"{of_gap} {recalls}")
    assert ("m: the shares mean nothing: no gap" in seen.lines) == void
    caption = seen.shown["share_ar_hit"].caption
    assert ("Shares of a lead: m." in caption) == (gap < 0 and not void)


def test_what_means_nothing_is_named_and_only_what_is_shown(known):
    """The shares of one slice; nothing of the control's, which are not shown. Only what is repeated can be changed, of any slice."""
    folder, tables = known
    row = tables.recall_share.filter(model="unigram_cache", slice="ar_hit").row(0, named=True) | {"void": False, "note": ""}
    void = row | {"void": True, "note": "too few"}
    rows = pl.DataFrame([row, row | {"slice": "number"}, void | {"slice": "first_rare"}], tables.recall_share.schema)
    shown = look(folder, InterveneTables(tables.intervene, tables.by_distance, tables.by_count, rows))
    assert "nothing" not in " ".join(shown.lines)
    assert shown.shown["share_number"].title == "Is it recall? Repeated bigrams of number"
    assert "in repeated bigrams of number (" in str(shown.shown["share_number"].caption)
    rows = pl.DataFrame([row, void | {"slice": "number"}], tables.recall_share.schema)
    lines = look(folder, InterveneTables(tables.intervene, tables.by_distance, tables.by_count, rows)).lines
    assert "unigram_cache: the share in repeated bigrams of number means nothing: too few" in lines


@pytest.mark.parametrize("all_shown", [False, True])
def test_of_many_models_the_range_is_said_of_those_of_which_it_is_known(known, all_shown):
    """Of three gaps two shrink; a lead, a void share and one that may be none are not among them."""
    folder, tables = known
    row = tables.recall_share.filter(model="unigram_cache", slice="ar_hit").row(0, named=True) | {
        "reference": "r",
        "void": False,
        "gap": 0.5,
    }
    ends = {"low": (0.2, 0.1, 0.3, 0.6), "high": (0.4, 0.3, 0.5, 0.7), "none": (0.1, -0.1, 0.3, 0.1), "lead": (0.9, 0.8, 1.0, 0.9)}
    if all_shown:
        ends |= {"none": (0.3, 0.2, 0.4, 0.65), "lead": (0.3, 0.2, 0.4, 0.65)}
    names = ("recall_share", "recall_share_ci_low", "recall_share_ci_high", "gap_share")
    rows = [row | {"model": name} | dict(zip(names, figures, strict=True)) for name, figures in ends.items()]
    rows[-1]["gap"] = 0.5 if all_shown else -0.5
    one = tables.intervene.filter(slice="ar_hit").head(1)
    asked = pl.concat(
        [
            one.with_columns(model=pl.lit(name), points=pl.lit(points))
            for name, points in zip(("r", *ends), (0.3, 0.02, 0.1, 0.2, 0.25), strict=True)
        ]
    )
    made = InterveneTables(asked, tables.by_distance.clear(), tables.by_count.clear(), pl.DataFrame(rows, tables.recall_share.schema))
    whose, most = ("4 models", "25.0") if all_shown else ("2 of 4 models", "10.0")
    assert look(folder, made).answer == (
        f"60.0 to 70.0 % of what {whose} lose to r lies in AR hits, and 20.0 to 40.0 % would be gone if neither could recall by "
        f"association there: they recall 2.0 to {most} points of probability, r 30.0."
    )


def test_tokens_that_could_not_be_changed_are_bounds(known):
    """Had they recalled nothing, or twice as much as the rest, the mean would be so much smaller or larger."""
    folder, tables = known
    samples = pl.read_parquet(folder / "samples.parquet")
    left_out = samples["excluded"] != ""
    share = samples.filter(left_out)["weight"].sum() / samples["weight"].sum()
    assert share > 0
    assert tables.intervene["excluded_share"].to_list() == pytest.approx([share] * len(tables.intervene))
    assert artifacts.read_manifest(folder / "intervene.parquet")["excluded"]
