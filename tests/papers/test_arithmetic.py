"""The attribution of printed perplexities: the formula, what rounding hides, and every mistake that
a table can hold."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.papers.arithmetic import (
    BETTER_ON_HITS,
    BETTER_ON_OTHER,
    MISFIT,
    MISSTATED,
    MODEL_BETTER,
    NO_GAP,
    ROUNDED_AWAY,
    WORSE_ON_HITS,
    WORSE_ON_OTHER,
    attribute_published,
)
from recallkit.papers.view import published_answer
from tests.conftest import ROOT

TABLE = (
    "model,all,ar,other\nattention,12.99,2.41,14.76\nconvolution,20.28,40.25,\nhyena,15.13,9.00,\n"
)


def write_csv(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_the_share_of_ar_hits_follows_from_the_reference_row(tmp_path):
    result = attribute_published(write_csv(tmp_path, TABLE))
    (group,) = result.groups
    assert (group.name, group.reference) == ("", "attention")
    assert (
        group.ar_share
        == result.frame["implied_ar_share"][0]
        == pytest.approx(math.log(12.99 / 14.76) / math.log(2.41 / 14.76))
    )
    exact = attribute_published(write_csv(tmp_path, TABLE), ar_share=0.0703)
    assert exact.groups[0].ar_share == 0.0703
    hyena = exact.frame.row(2, named=True)
    assert hyena["gap_share"] == pytest.approx(
        0.0703 * math.log(9.00 / 2.41) / math.log(15.13 / 12.99),
    )
    assert hyena["gap_share_clipped"] == hyena["gap_share"]


@pytest.mark.parametrize("ar_share", [None, 0.0703])
def test_every_way_of_rounding_is_in_the_range(tmp_path, ar_share):
    """Perplexities drawn within half a unit of what is printed give shares in the range, and come
    close to both of its ends."""
    row = attribute_published(write_csv(tmp_path, TABLE), ar_share=ar_share).frame.row(
        2,
        named=True,
    )
    rng = np.random.default_rng(0)
    every, ar, ref_every, ref_ar, ref_other = (
        x + rng.uniform(-0.005, 0.005, 100_000) for x in (15.13, 9.00, 12.99, 2.41, 14.76)
    )
    p = ar_share or np.log(ref_every / ref_other) / np.log(ref_ar / ref_other)
    shares = p * np.log(ar / ref_ar) / np.log(every / ref_every)
    low, high = row["gap_share_low"], row["gap_share_high"]
    assert low <= shares.min() < low + 0.15 * (high - low)
    assert high >= shares.max() > high - 0.15 * (high - low)


def test_rounding_may_hide_which_is_better(tmp_path):
    row = attribute_published(
        write_csv(tmp_path, TABLE + "near,13.00,2.5,\nsame,12.99,2.5,\n"),
    ).frame
    assert row["note"].to_list()[3:] == [ROUNDED_AWAY, NO_GAP]
    assert row["void"].to_list() == [False, False, False, True, False]
    assert row["gap_share_low"].to_list()[3:] == [None, None]


def test_groups_have_references_of_their_own(tmp_path):
    text = "group,model,all,ar,other\nsmall,attention,20,10,25\nlarge,attention,10,3,12\nsmall,m,21,12,26\nlarge,m,11,4,13\n"
    result = attribute_published(write_csv(tmp_path, text))
    assert [(group.name, group.reference) for group in result.groups] == [
        ("small", "attention"),
        ("large", "attention"),
    ]
    for group in result.groups:
        alone = "model,all,ar,other\n" + "".join(
            line.partition(",")[2] + "\n"
            for line in text.splitlines()
            if line.startswith(group.name)
        )
        expected = attribute_published(write_csv(tmp_path, alone, "alone.csv"))
        assert expected.groups[0].ar_share == group.ar_share
        assert (
            result.frame.filter(group=group.name).drop("group").equals(expected.frame.drop("group"))
        )
    with pytest.raises(UserError, match="no row of model b of group small"):
        attribute_published(write_csv(tmp_path, text + "large,b,12,4,14\n"), reference="b")


@pytest.mark.parametrize(("stated", "noted"), [("60.6", False), ("60.4", True), ("", False)])
def test_a_stated_share_is_compared(tmp_path, stated, noted):
    """60.5 to 61.3 % is what these perplexities can give."""
    table = write_csv(
        tmp_path,
        f"model,all,ar,other,printed\nattention,12.99,2.41,14.76,\nhyena,15.13,9.00,,{stated}\n",
    )
    row = attribute_published(table).frame.row(1, named=True)
    assert row["printed"] == (None if not stated else pytest.approx(float(stated) / 100))
    assert (MISSTATED in row["note"]) is noted


def test_rows_that_contradict_the_reference_are_named(tmp_path):
    """Of the second model's tokens 7.0 % are AR hits, as of the reference's; of the third's 2.4
    %."""
    text = (
        "model,all,ar,other\nattention,9.44,1.98,10.62\nh3,10.38,4.81,11.00\nfull,8.59,1.95,8.91\n"
    )
    notes = attribute_published(write_csv(tmp_path, text)).frame["note"].to_list()
    assert [MISFIT.format(2.4) in note for note in notes] == [False, False, True]


def test_the_example_is_zoologys_first_table():
    rows = attribute_published(ROOT / "examples" / "02_zoology_70m.csv", ar_share=0.0703).frame
    assert dict(zip(rows["model"], rows["gap_share"].round(3), strict=True)) == {
        "Attention": None, "Long Convolution": 0.444, "H3": 0.632, "Hyena": 0.607, "RWKV": 0.579,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("row", "clipped", "note"),
    [
        ("10.00,3.00", None, NO_GAP),
        ("9.00,2.00", "raw", MODEL_BETTER),
        ("9.90,4.00", 1.0, f"{MODEL_BETTER}; {WORSE_ON_HITS}"),
        ("9.90,1.00", 1.0, f"{MODEL_BETTER}; {WORSE_ON_OTHER}"),
        ("11.00,2.90", "raw", BETTER_ON_HITS),
        ("10.10,4.00", 1.0, BETTER_ON_OTHER),
    ],
)
def test_a_share_that_misleads_is_named(tmp_path, row, clipped, note):
    path = write_csv(tmp_path, f"model,all,ar,other\nattention,10.00,3.00,12.00\nmodel,{row},\n")
    row = attribute_published(path, ar_share=0.13).frame.row(1, named=True)
    assert row["note"] == note
    assert row["gap_share_clipped"] == (row["gap_share"] if clipped == "raw" else clipped)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("model,all\na,10\n", {}, "no column ar"),
        (
            "model,all,ar,other\na,10,3,12\nb,0,3,12\n",
            {},
            "row b: all is '0', not a positive number",
        ),
        ("model,all,ar,other\na,10,3,12\nb,1f1,3,12\n", {}, "row b: all is '1f1', not a positive"),
        ("model,all,ar,other\na,10,,12\n", {}, "row a: no perplexity in column ar"),
        ("model,all,ar,other\na,10,12,12\n", {}, "ar and other are equal"),
        ("model,all,ar,other\na,13,3,12\n", {}, "not between 0 and 1; check the perplexities of a"),
        (
            "model,all,ar,other\na,10,3,12\n",
            {"ar_share": 7.03},
            "7.03, not between 0 and 1; give it as a fraction",
        ),
        ("model,all,ar,other\na,10,3,12\na,11,4,12\n", {}, "two rows of model a"),
        ("model,all,ar,other\n,10,3,12\n", {}, "row 1 has no model"),
        ("model,all,AR,ar\na,10,3,12\n", {}, "two columns with the same name"),
    ],
)
def test_a_mistake_is_one_line_that_names_the_row(tmp_path, text, options, message):
    with pytest.raises(UserError) as caught:
        attribute_published(write_csv(tmp_path, text), **options)
    assert message in caught.value.line()
    assert "table.csv" in caught.value.line()


def test_a_missing_or_damaged_file_is_a_user_error(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        attribute_published(tmp_path / "absent.csv")
    with pytest.raises(UserError, match="not a readable table"):
        attribute_published(write_csv(tmp_path, ""))


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ("m,11,4,\n", "AR hits carry 39.2 % of the gap of m to attention."),
        (
            "m,11,4,\nn,10.5,9.9,\n",
            "AR hits carry 39.2 % (m) to 318.1 % (n) of the gaps of 2 models to attention.",
        ),
        (
            "m,11,4,\nsame,10.00,3.00,\n",
            "AR hits carry 39.2 % of the gap of m to attention. No gap beyond rounding: same.",
        ),
        ("m,11,4,\nahead,9,2,\n", "AR hits carry 39.2 % of the gap of m to attention."),
        ("m,11,2.9,\n", "AR hits carry -4.6 % of the gap of m to attention."),
        ("ahead,9,2,\n", "No model is behind its reference by more than rounding."),
    ],
)
def test_the_sentence_is_of_every_model_that_is_behind(tmp_path, rows, sentence):
    """Nobody is clipped to 100 % or left out: 0.13 (ln ppl_ar - ln 3) / (ln ppl - ln 10) of
    each."""
    published = attribute_published(
        write_csv(tmp_path, f"model,all,ar,other\nattention,10.00,3.00,12.00\n{rows}"),
        ar_share=0.13,
    )
    assert published_answer(published) == sentence
