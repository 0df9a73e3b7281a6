"""A small comparison, logged by the command line, and what is expected of it in any tracker."""

import json

import polars as pl
import pytest

from recallkit import cli

MODELS = ("control:bigram", "control:recall", "control:unigram")


@pytest.fixture(scope="session")
def gap_folder(tmp_path_factory):
    """Where the comparison is written: a name that is the same in every run."""
    return tmp_path_factory.mktemp("compared") / "mine"


@pytest.fixture
def log_gap(home, small_slices, gap_folder, capsys):
    """`recallkit gap MODELS... --log-to DESTINATION...`: (status, the JSON on stdout, the notes on stderr)."""

    def call(*destinations, models=MODELS):
        words = ["gap", *models, "--slices", small_slices, "-o", gap_folder, "--json"]
        with pytest.raises(SystemExit) as stopped:
            cli.run([*map(str, words), *(word for each in destinations for word in ("--log-to", str(each)))])
        told = capsys.readouterr()
        return int(stopped.value.code or 0), json.loads(told.out) if told.out else None, told.err

    return call


@pytest.fixture
def is_logged(gap_folder):
    """Whether numbers, tables and names of figures are those of the comparison on the disk."""

    def check(numbers, tables, figures):
        frame = pl.read_parquet(gap_folder / "gap.parquet")
        whole = {(row["model"], row["slice"]): row for row in frame.filter(source="ALL").to_dicts()}
        expected = {}
        for (model, slice_), row in whole.items():
            shares = () if slice_ == "all" else ("gap_share", "ci_low", "ci_high")
            expected |= {f"gap/{model}/{slice_}/{name}": row[name] for name in ("ppl_model", "delta_nll", *shares)}
        assert not any(row["void"] for row in whole.values())
        assert len(expected) == 2 * (4 * 2 + 3 * 3)
        assert numbers == pytest.approx(expected, rel=1e-6)
        assert tables["gap/gap"] == frame.to_dicts()
        assert set(tables) == {f"gap/{path.stem}" for path in gap_folder.glob("*.parquet") if path.stem != "by_document"}
        assert {"gap/gap_parts", "gap/by_count", "gap/by_source"} <= set(figures)

    return check


PNG = b"\x89PNG\r\n\x1a\n"
