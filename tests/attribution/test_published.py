"""The attribution of published tables: Zoology's own figures, and every mistake that a table can hold."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from recallkit.attribution.published import attribute_published
from recallkit.attribution.shares import BETTER_ON_HITS, BETTER_ON_OTHER, MODEL_BETTER, NO_GAP, WORSE_ON_HITS, WORSE_ON_OTHER
from recallkit.errors import UserError
from tests.conftest import ROOT

# Zoology Table 4: perplexity of all tokens, AR hits, other tokens; the printed share of the gap in percent.
ZOOLOGY = {
    "70M": {
        "Attention": (12.99, 2.41, 14.76, None),
        "Long Conv": (20.28, 40.25, None, 44.4),
        "H3": (15.78, 13.86, None, 63.2),
        "Hyena": (15.13, 9.00, None, 60.7),
        "RWKV": (16.10, 14.11, None, 57.9),
    },
    "125M": {"Attention": (11.01, 2.16, 12.45, None), "Long Conv": (16.98, 25.62, None, 40.1), "H3": (12.06, 6.75, None, 87.9)},
    "360M": {"Attention": (9.44, 1.98, 10.62, None), "Long Conv": (13.13, 13.27, None, 40.5), "H3": (10.38, 4.81, None, 65.7)},
}
IMPLIED = {"70M": 7.05, "125M": 7.02, "360M": 7.01}


def write_csv(folder: Path, text: str, name: str = "table.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def zoology_csv(folder: Path, scale: str) -> Path:
    lines = [f"{model},{everything},{ar},{other or ''}" for model, (everything, ar, other, _) in ZOOLOGY[scale].items()]
    return write_csv(folder, "\n".join(["model,all,ar,other", *lines]) + "\n")


@pytest.mark.parametrize("scale", ZOOLOGY)
def test_the_share_of_ar_hits_follows_from_the_attention_row(tmp_path, scale):
    result = attribute_published(zoology_csv(tmp_path, scale))
    assert result.reference == "Attention"
    assert 100 * result.ar_share == pytest.approx(IMPLIED[scale], abs=0.005)
    assert result.frame["implied_ar_share"][0] == result.ar_share


@pytest.mark.parametrize("scale", ZOOLOGY)
def test_zoology_table_4_is_reproduced_to_a_tenth_of_a_point(tmp_path, scale):
    result = attribute_published(zoology_csv(tmp_path, scale), ar_share=0.0703)
    for row in result.frame.iter_rows(named=True):
        expected = ZOOLOGY[scale][row["model"]][3]
        if expected is None:
            assert (row["gap_share"], row["note"]) == (None, "reference")
        else:
            assert 100 * row["gap_share"] == pytest.approx(expected, abs=0.1)
            assert row["gap_share_clipped"] == row["gap_share"]
            assert row["note"] == ""


def test_the_example_is_zoologys_first_table():
    rows = attribute_published(ROOT / "examples" / "02_zoology_70m.csv", ar_share=0.0703).frame
    assert dict(zip(rows["model"], rows["gap_share"].round(3), strict=True)) == {
        "Attention": None, "Long Convolution": 0.444, "H3": 0.632, "Hyena": 0.607, "RWKV": 0.579,
    }  # fmt: skip


def test_another_row_can_be_the_reference(tmp_path):
    path = write_csv(tmp_path, "model,all,ar,other\nslow,20,10,25\nfast,16,4,20\n")
    result = attribute_published(path, reference="fast")
    assert result.reference == "fast"
    assert result.frame["note"].to_list() == ["", "reference"]
    assert result.frame["implied_ar_share"][0] == pytest.approx(0.2435, abs=1e-4)


@pytest.mark.parametrize(
    ("row", "clipped", "note"),
    [
        ("10,3", None, NO_GAP),
        ("9,2", "raw", MODEL_BETTER),
        ("9.9,4", 1.0, WORSE_ON_HITS),
        ("9.9,1", 1.0, WORSE_ON_OTHER),
        ("11,2.9", "raw", BETTER_ON_HITS),
        ("10.1,4", 1.0, BETTER_ON_OTHER),
    ],
)
def test_a_share_that_misleads_is_named(tmp_path, row, clipped, note):
    path = write_csv(tmp_path, f"model,all,ar,other\nattention,10,3,12\nmodel,{row},\n")
    found = attribute_published(path, ar_share=0.13).frame.row(1, named=True)
    assert found["note"] == note
    assert found["gap_share_clipped"] == (found["gap_share"] if clipped == "raw" else clipped)


def test_tables_come_as_tsv_and_parquet_too(tmp_path):
    csv = zoology_csv(tmp_path, "70M")
    expected = attribute_published(csv)
    tsv = write_csv(tmp_path, csv.read_text(encoding="utf-8").replace(",", "\t"), "table.tsv")
    parquet = tmp_path / "table.parquet"
    pl.read_csv(csv).write_parquet(parquet)
    for path in (tsv, parquet):
        assert attribute_published(path).frame.equals(expected.frame)


def test_column_names_may_be_in_capitals_and_a_row_may_lack_its_ar_perplexity(tmp_path):
    result = attribute_published(write_csv(tmp_path, "Model, All, AR, Other\na,10,3,12\nb,11,,\n"))
    assert result.frame["note"].to_list() == ["reference", "no perplexity on AR hits"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("model,all\na,10\n", {}, "no column ar"),
        ("model,all,ar,other\n", {}, "no rows"),
        ("", {}, "an empty file"),
        ("model,all,ar,other\na,10,3,12\nb,0,3,12\n", {}, "row b: all is '0', not a positive number"),
        ("model,all,ar,other\na,10,3,12\nb,nan,3,12\n", {}, "row b: all is 'nan'"),
        ("model,all,ar,other\na,10,3,12\nb,ten,3,12\n", {}, "row b: all is 'ten'"),
        ("model,all,ar,other\na,10,3,12\nb,,3,12\n", {}, "row b: no perplexity in column all"),
        ("model,all,ar,other\na,10,,12\n", {}, "row a: no perplexity in column ar"),
        ("model,all,ar,other\na,10,3,\n", {}, "row a: no perplexity in column other"),
        ("model,all,ar\na,10,3\n", {}, "row a: no perplexity in column other"),
        ("model,all,ar,other\na,10,12,12\n", {}, "ar and other are equal"),
        ("model,all,ar,other\na,13,3,12\n", {}, "not between 0 and 1; check the perplexities of a"),
        ("model,all,ar,other\na,2,3,12\n", {}, "not between 0 and 1"),
        ("model,all,ar,other\na,10,3,12\n", {"ar_share": 7.03}, "7.03, not between 0 and 1; give it as a fraction"),
        ("model,all,ar,other\na,10,3,12\na,11,4,12\n", {}, "two rows of model a"),
        ("model,all,ar,other\n,10,3,12\n", {}, "row 1 has no model"),
        ("model,all,ar,other\na,10,3,12\n", {"reference": "b"}, "no row of model b"),
        ("model,all,AR,ar\na,10,3,12\n", {}, "two columns of one name"),
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
    with pytest.raises(UserError, match="no such file"):
        attribute_published(tmp_path / "absent.parquet")
    with pytest.raises(UserError, match="not a readable table"):
        attribute_published(write_csv(tmp_path, "not parquet", "broken.parquet"))
