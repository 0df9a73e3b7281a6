"""Divergences by slice, distance and position: known ones come out, and what is said of them holds
in no other case."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow as pa
import pytest

import recallkit
from recallkit.attribution.divergence import QUANTILES, divergence_table, divergences, in_a_sentence
from recallkit.report import words
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import parquet_files, schemas
from tests.planted import scores_manifest

FAR = "far=distance > 20"
MODELS = {"thrice": 3, "twice": 2, "same": 1, "half": 0.5}


def planted(slices: Path, folder: Path, name: str, kl: np.ndarray, agrees: np.ndarray) -> Path:
    """A file of these divergences."""
    keys, schema = (
        pl.read_parquet(slices / "tokens.parquet", columns=["sequence", "position"]),
        schemas.arrow_schema("divergence"),
    )
    columns = [
        *(keys[name].to_arrow() for name in keys.columns),
        pa.array(kl.astype(np.float32)),
        pa.array(agrees),
    ]
    labels = parquet_files.read_manifest(slices / "tokens.parquet")
    same = {field: labels[field] for field in ("sequences_digest", "num_rows")}
    facts = scores_manifest(name, kind="divergence", **same)
    parquet_files.write_parquet(
        folder / f"{name}.parquet", [pa.Table.from_arrays(columns, schema=schema)], schema, facts
    )
    return folder / f"{name}.parquet"


@pytest.fixture(scope="module")
def labels(small_slices) -> pl.DataFrame:
    return pl.read_parquet(small_slices / "tokens.parquet")


@pytest.fixture(scope="module")
def made(small_slices, labels, tmp_path_factory) -> tuple[pl.DataFrame, dict[str, np.ndarray]]:
    """The table of four models, and their divergences: 3, 2, 1 and 1/2 times as large in AR hits as
    elsewhere, but for some noise."""
    folder, rng = tmp_path_factory.mktemp("planted"), np.random.default_rng(5)
    hit = labels["ar_hit"].to_numpy()
    noise = rng.uniform(0.99, 1.01, len(hit))
    values = {name: noise * np.where(hit, factor, 1.0) for name, factor in MODELS.items()}
    agrees = rng.uniform(size=len(hit)) < np.where(hit, 0.25, 0.75)
    files = {name: planted(small_slices, folder, name, of, agrees) for name, of in values.items()}
    table = divergences(small_slices / "tokens.parquet", "ref", files, slices=parse_slices([FAR]))
    return table, {**values, "agrees": agrees}


def test_means_and_quantiles_are_those_of_numpy(made, labels):
    table, values = made
    hit, repeated = labels["ar_hit"].to_numpy(), labels["repeated"].to_numpy()
    far = labels["distance"].fill_null(0).to_numpy() > 20
    inside = {"all": hit | True, "ar_hit": hit, "other": ~hit, "repeated": repeated, "far": far}
    rows = table.filter(by="slice", model="thrice").to_dicts()
    assert [row["slice"] for row in rows] == list(inside)
    for row in rows:
        of = values["thrice"].astype(np.float32).astype(np.float64)[inside[row["slice"]]]
        assert row["tokens"] == len(of)
        assert row["share_of_tokens"] == pytest.approx(len(of) / len(hit))
        assert row["kl"] == pytest.approx(of.mean(), rel=1e-9)
        assert row["kl_ci_low"] < row["kl"] < row["kl_ci_high"]
        assert row["agreement"] == pytest.approx(
            values["agrees"][inside[row["slice"]]].mean(), rel=1e-9
        )
        for name, rank in QUANTILES.items():
            assert row[name] == pytest.approx(np.quantile(of, rank), rel=1e-9)


def test_buckets_partition_their_slices(made, labels):
    table, values = made
    kl = values["thrice"]
    for by in ("distance", "position"):
        rows = table.filter(by=by, model="thrice")
        place = labels[by].fill_null(0).to_numpy()
        for row in rows.to_dicts():
            inside = (
                (place >= row["low"])
                & (place <= row["high"])
                & (labels["ar_hit"].to_numpy() == (row["slice"] == "ar_hit"))
            )
            assert row["tokens"] == inside.sum()
            assert row["kl"] == pytest.approx(kl[inside].mean(), rel=1e-6)
        assert rows["tokens"].sum() == (
            labels["repeated"].sum() if by == "distance" else len(labels)
        )
        assert rows["kl_p50"].is_null().all()


def test_an_ar_hit_is_compared_with_the_first_occurrence_of_its_bigram(made, labels):
    table, values = made
    hit = labels["ar_hit"].to_numpy()
    first = (np.arange(len(hit)) - labels["first_distance"].fill_null(0).to_numpy())[hit]
    for model, factor in MODELS.items():
        row = table.filter(by="slice", model=model, slice="ar_hit").row(0, named=True)
        assert row["kl_first"] == pytest.approx(values[model][first].mean(), rel=1e-6)
        assert row["ratio"] == pytest.approx(factor, rel=0.005)
        assert row["ratio_ci_low"] < row["ratio"] < row["ratio_ci_high"]
        assert row["ratio_ci_high"] - row["ratio_ci_low"] < 0.2
    assert table.filter(by="slice", slice="other")["ratio"].is_null().all()


def sentence(table: pl.DataFrame, *models: str) -> str:
    return in_a_sentence(table.filter(pl.col("model").is_in(models)))


def test_the_sentence_is_of_all_models_and_names_who_does_not_differ_more_where_recall_is_needed(
    made,
):
    table, _ = made
    per_hit = (
        "On AR hits, the KL divergence of {} from ref is {} times that at the first occurrences "
        "of their bigrams"
    )
    assert sentence(table, "thrice") == f"{per_hit.format('thrice', '3.0')}."
    assert (
        sentence(table, "twice", "thrice")
        == f"{per_hit.format('2 models', '2.0 (twice) to 3.0 (thrice)')}."
    )
    unresolved = "; it is not significantly larger for "
    every = per_hit.format("4 models", "0.5 (half) to 3.0 (thrice)")
    assert sentence(table, *MODELS) == f"{every}{unresolved}same, half."
    assert sentence(table, "half") == f"{per_hit.format('half', '0.5')}{unresolved}half."
    no_interval = table.with_columns(ratio_ci_low=None, ratio_ci_high=None)
    assert sentence(no_interval, "thrice").endswith(f"{unresolved}thrice.")
    is_rounding = pl.col("model") == "twice"
    rounded = table.with_columns(
        pl.when(is_rounding).then(pl.col("kl") * 1e-7).otherwise("kl").alias("kl")
    )
    assert (
        sentence(rounded, "twice", "thrice")
        == f"{per_hit.format('thrice', '3.0')}{unresolved}twice."
    )
    assert sentence(rounded, "twice").endswith(" nats per token.")
    none = table.with_columns(kl=pl.when(pl.col("slice") != "ar_hit").then("kl"), ratio=None)
    assert sentence(none, "thrice").endswith(" nats per token; there are no AR hits.")


def test_tables_have_the_figures_of_their_rows(made):
    table, _ = made
    shown = divergence_table(table)
    hits = table.filter(by="slice", model="twice", slice="ar_hit").row(0, named=True)
    assert [row[:2] for row in shown.rows[:5]] == [
        *(["all", model] for model in MODELS),
        ["ar_hit", "thrice"],
    ]
    mean, ratio = (
        f"{hits['kl']:#.3g}",
        f"{hits['ratio']:.2f} ({hits['ratio_ci_low']:.2f} to {hits['ratio_ci_high']:.2f})",
    )
    quantiles = [f"{hits[name]:#.3g}" for name in QUANTILES]
    assert shown.rows[5][3] == mean
    assert shown.rows[5][5:] == [ratio, *quantiles, f"{100 * hits['agreement']:.1f}"]
    assert shown.rows[1][5] == "–", "of all tokens there is no ratio"


def test_the_command_prints_and_exports_it(few_slices, tiny_model, run, tmp_path):
    models = [
        f"ref={tiny_model('llama')}",
        f"one={tiny_model('gpt_neox')}",
        f"itself={tiny_model('llama')}",
    ]
    others = shutil.ignore_patterns("scores")  # where another test may have named a model so, too
    out, few_slices = (
        tmp_path / "out",
        Path(shutil.copytree(few_slices, tmp_path / "slices", ignore=others)),
    )
    found = run("gap", *models, "--slices", few_slices, "-o", out, "--divergence", "--export", "md")
    assert found.returncode == 0, found.stderr
    assert "; it is not significantly larger for one, itself." in " ".join(found.stdout.split())
    title = "Predictions beside those of ref: KL divergence in nats per token, and agreement in %"
    assert title in " ".join(found.stdout.split())
    assert "| itself |" in (out / "divergence.md").read_text()
    tables = recallkit.read_comparison(out, slices=few_slices)
    assert " --divergence " in words.commands(tables)[-1]
    itself = tables.tables.by_divergence.filter(model="itself", by="slice")
    assert itself["kl"].max() == 0
    assert itself["agreement"].min() == 1
    again = run("gap", *models, "--slices", few_slices, "-o", out)
    assert "already made with other options (differs in divergence)" in again.stderr
    page = run("report", out, "-o", tmp_path / "page.html")
    assert page.returncode == 0
    assert title in (tmp_path / "page.html").read_text()
