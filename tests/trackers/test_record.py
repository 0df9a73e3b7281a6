"""What trackers get: rows up to a bound, options as JSON values, a name, numbers, and no text."""

import json
import math
from pathlib import Path

import polars as pl

import recallkit
from recallkit.attribution.gates import parse_gate
from recallkit.commands.app import declared
from recallkit.display.tables import Table
from recallkit.models.spec import one_model
from recallkit.storage.result import KINDS
from recallkit.storage.schemas import LAYOUTS
from recallkit.trackers import Destination
from recallkit.trackers.record import HEADLINES, MOST_ROWS, headline_numbers, make_record


def test_options_are_json_values_without_the_content_of_objects():
    options = {
        "models": {"a": object(), "b": Path("x/y")},
        "one": one_model("mine=control:bigram"),
        "gates": (parse_gate("30%"), parse_gate("all=0.5")),
        "number": 3,
        "nothing": None,
        "values": [True, 1.5, {"x": ["https://me:secret@h/a.jsonl?sig=secret"]}],
    }
    record = make_record("gap", options, [], [], Path("none"))
    assert record.options == {
        "models": {"a": "object", "b": "x/y"},
        "one": "control:bigram",
        "gates": ["ar_hit=30%", "all=0.5"],
        "number": 3,
        "values": [True, 1.5, {"x": ["https://***@h/a.jsonl?***"]}],
    }
    assert (record.name, record.numbers, record.tables) == ("gap", {}, {})
    assert json.loads(json.dumps(record.config))["command"] == "gap"


def test_long_tables_are_cut_with_a_note_and_empty_ones_left_out(tmp_path, capsys):
    rows = pl.DataFrame({"row": range(MOST_ROWS + 5)})
    numbers = {"accuracy": 0.5, "accuracy_high": 0.75, "ar_ppl": 2.0, "filler_ppl": 3.0}
    frames = {
        "first": rows,
        "exact": rows.head(MOST_ROWS),
        "empty": rows.clear(),
        "mqar": pl.DataFrame([{"model": "m", "pairs": 4, "accuracy_low": None, **numbers}]),
    }
    printed, folder = {"table": Table("T", ["a"], [["1"]])}, tmp_path / ("x" * 200)
    record = make_record("mqar", {}, [(frames, printed, folder)], [], tmp_path)
    lengths = {name: len(table) for name, table in record.tables.items()}
    assert lengths == {"mqar/first": MOST_ROWS, "mqar/exact": MOST_ROWS, "mqar/mqar": 1}
    cut = "the first 10,000 of 10,005 rows are logged; the Parquet file has all"
    assert capsys.readouterr().err == f"recallkit: mqar/first: {cut}\n"
    assert record.numbers == {f"mqar/m/4/{name}": number for name, number in numbers.items()}
    assert len(record.name) == 120
    assert list(record.printed) == ["mqar/table"]


def test_texts_of_a_function_are_no_options(home, tmp_path):
    records = []

    class Recorder:
        def log(self, record):
            records.append(record)
            return "here"

    arguments = {"texts": ["a secret text"] * 9, "out": tmp_path / "slices", "seq_len": 16}
    recallkit.slice(**arguments)
    command = declared("slice")
    options = command.options(**arguments)
    command.log({Destination("x", None): Recorder()}, command.function(options), options)
    [record] = records
    assert record.options == {"out": str(tmp_path / "slices"), "seq_len": 16}
    assert "secret" not in json.dumps(record.config)
    assert not any("secret" in str(table) for table in record.tables.values())


def test_every_kind_of_result_has_headlines_of_columns_that_it_has():
    assert {table.partition("/")[0] for table in HEADLINES} >= set(KINDS)
    for table, headlines in HEADLINES.items():
        for headline in headlines if table in LAYOUTS else ():
            names = {*headline.keys, *headline.values, *headline.where, *headline.unless}
            assert names <= set(LAYOUTS[table]), table


def row(slice_, source="ALL", void=False, **numbers):
    usual = {
        "ppl_model": 2.0,
        "delta_nll": 0.5,
        "gap_share": 0.25,
        "gap_share_ci_low": 0.2,
        "gap_share_ci_high": 0.3,
        "gain_model": 0.1,
        "retained": 0.5,
        "retained_ci_low": 0.4,
        "retained_ci_high": None,
    }
    return {"model": "m/1", "source": source, "slice": slice_, "void": void, **usual, **numbers}


def test_published_shares_of_a_gap_that_rounding_hides_are_left_out(tmp_path):
    table = tmp_path / "table.csv"
    lines = [
        "model,all,ar,other",
        "ref,10.00,3.00,12.00",
        "clear,11.00,4.00,",
        "hidden,10.01,4.00,",
    ]
    table.write_text("\n".join(lines))
    logged = headline_numbers("published", {"published": recallkit.published(table).frame})
    assert set(logged) == {"published/clear/gap_share"}


def test_what_is_void_missing_or_infinite_is_left_out():
    frame = pl.DataFrame(
        [
            row("all", gap_share=1.0),
            row("ar_hit", gap_share_ci_high=None),
            row("other", void=True),
            row("far", delta_nll=math.inf, ppl_model=math.nan),
            row("ar_hit", source="books", delta_nll=7.0),
            row("ar_hit", delta_nll=9.0),  # of a source that is called ALL: the totals come first
        ]
    )
    assert headline_numbers("gap", {"gap": frame, "by_count": frame}) == {
        "gap/m/1/all/ppl_model": 2.0,
        "gap/m/1/all/delta_nll": 0.5,
        "gap/m/1/ar_hit/ppl_model": 2.0,
        "gap/m/1/ar_hit/delta_nll": 0.5,
        "gap/m/1/ar_hit/gap_share": 0.25,
        "gap/m/1/ar_hit/gap_share_ci_low": 0.2,
        "gap/m/1/ar_hit/gain_model": 0.1,
        "gap/m/1/ar_hit/retained": 0.5,
        "gap/m/1/ar_hit/retained_ci_low": 0.4,
        "gap/m/1/other/ppl_model": 2.0,
        "gap/m/1/other/delta_nll": 0.5,
        "gap/m/1/far/gap_share": 0.25,
        "gap/m/1/far/gap_share_ci_low": 0.2,
        "gap/m/1/far/gap_share_ci_high": 0.3,
    }
