"""The command line as a user meets it: errors are one line, with what to do about it, results the
same in every form."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from pathlib import Path

import polars as pl
import pytest
import zstandard

from recallkit import __version__, builtin, counting
from recallkit.options import TextOptions
from tests.conftest import ROOT, made_up_texts, write_jsonl


@pytest.fixture
def invoke(run):
    """Runs the command line: (exit code, stdout, stderr)."""

    def call(*arguments: object) -> tuple[int, str, str]:
        done = run(*arguments)
        return done.returncode, done.stdout, done.stderr

    return call


def assert_one_line(
    result: tuple[int, str, str], *words: str, code: int = 1, after_notes: bool = False
) -> None:
    """One line on stderr with these words, nothing on stdout; `after_notes` allows notes before
    it."""
    status, out, err = result
    assert status == code, err
    assert out == ""
    assert err.count("\n") == 1 or after_notes
    err = err.splitlines()[-1]
    assert "Traceback" not in err
    for word in words:
        assert word in err, f"{word!r} not in {err!r}"


# ---------------------------------------------------------------------------------------- bad input


def truncated(path: Path) -> Path:
    data = zstandard.ZstdCompressor().compress(
        "".join(json.dumps({"text": t}) + "\n" for t in made_up_texts(300, 100)).encode()
    )
    path.write_bytes(data[: len(data) // 2])
    return path


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


GOOD = b'{"text": "a b a b"}\n'


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda d: d / "missing.jsonl", ["missing.jsonl"]),
        (lambda d: truncated(d / "cut.jsonl.zst"), ["cut.jsonl.zst"]),
        (
            lambda d: written(d / "bad.jsonl", GOOD + b"not json\n"),
            ["bad.jsonl", "2", "--skip-bad"],
        ),
    ],
    ids=["missing", "truncated", "not-json"],
)
def test_bad_text_is_one_line_and_leaves_nothing_half_written(invoke, tmp_path, make, words):
    text = make(tmp_path)
    for command in ("count", "slice"):
        result = invoke(command, text, "-o", tmp_path / "out" / command)
        assert_one_line(result, *words, after_notes=True)  # the one on the tokenizer
        assert not (tmp_path / "out" / command).exists() or not list(
            (tmp_path / "out" / command).glob("*.parquet")
        )


def test_counts_of_another_tokenizer_are_refused(invoke, tmp_path, small_slices):
    from tests.text.test_tokenizers import word_tokenizer

    other = word_tokenizer(["?", "</s>", "a"])
    other.add_special_tokens(["</s>"])
    other.save(str(tmp_path / "other.json"))
    text = small_slices.parent / "valid.jsonl"
    result = invoke(
        "slice",
        text,
        "--counts",
        small_slices.parent / "counts.duckdb",
        "--tokenizer",
        tmp_path / "other.json",
        "-o",
        tmp_path / "s",
    )
    assert_one_line(result, "counts.duckdb", "recallkit-4k", "other.json", "--tokenizer")


def copy_of(slices: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(slices, tmp_path / "slices"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["score", "control:bigam"], ["control:bigam", "did you mean control:bigram"]),
        (["count", "--import", "nothing.csv", "-o", "x.duckdb"], ["nothing.csv", "no such file"]),
        (
            ["gap", "control:recall", "control:bigram", "--slices", "no"],
            ["make it with `recallkit slice -o no`"],
        ),
    ],
)
def test_wrong_names_are_one_line(invoke, arguments, words, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    # that it is the built-in text
    assert_one_line(invoke(*arguments), *words, after_notes=arguments[0] == "score")


@pytest.mark.parametrize(
    "arguments",
    [
        ["gap", "control:bigram", "--stride", "5", "--carry-state"],
        ["slice", "--max-count", "9223372036854775808"],
        ["nonsense"],
        ["gap", "--nope"],
        ["slice", "--seq-len"],
        ["verify"],
        ["verify", "a", "b"],
        ["gap", "x"],
        ["gap", "control:bigram", "control:bigram"],
    ],
)
def test_usage_errors_are_one_line_and_exit_2(invoke, arguments):
    assert_one_line(invoke(*arguments), code=2)


def test_finished_work_is_found_again_and_never_replaced_unasked(invoke, tmp_path):
    shard = write_jsonl(tmp_path / "t.jsonl", made_up_texts(5, 50))
    out = tmp_path / "c.duckdb"
    assert invoke("count", shard, "-o", out)[0] == 0
    before = out.read_bytes()
    status, _, err = invoke("count", shard, "-o", out)
    assert (status, out.read_bytes()) == (0, before)
    assert "is complete: reused" in err
    assert_one_line(
        invoke("count", shard, "-o", out, "--limit-tokens", 20), "limit_tokens", "--force"
    )
    assert out.read_bytes() == before
    assert invoke("count", shard, "-o", out, "--limit-tokens", 20, "--force", "--json")[0] == 0
    write_jsonl(shard, made_up_texts(6, 50))
    assert_one_line(invoke("count", shard, "-o", out, "--limit-tokens", 20), "sources", "--force")


def test_counts_of_only_other_sequences_are_refused(invoke, tmp_path, small_slices):
    train, valid, other = (
        small_slices.parent / f"{name}.jsonl" for name in ("train", "valid", "other")
    )
    assert invoke("slice", other, "-o", tmp_path / "other")[0] == 0
    assert (
        invoke("count", train, "--only", tmp_path / "other", "-o", tmp_path / "only.duckdb")[0] == 0
    )
    assert_one_line(
        invoke("slice", valid, "--counts", tmp_path / "only.duckdb", "-o", tmp_path / "s"),
        "--only",
        after_notes=True,
    )
    slices = copy_of(small_slices, tmp_path)
    assert_one_line(
        invoke(
            "score",
            "control:bigram",
            "--slices",
            slices,
            "--counts",
            tmp_path / "only.duckdb",
            "--force",
        ),
        "all of them",
    )


def test_a_users_files_are_never_replaced(invoke, tmp_path):
    shard = write_jsonl(tmp_path / "precious.jsonl", made_up_texts(5, 50))
    before = shard.read_bytes()
    counts = tmp_path / "c.duckdb"
    assert_one_line(invoke("count", shard, "-o", shard, "--force"), "one of the inputs")
    assert invoke("count", shard, "-o", counts)[0] == 0
    assert_one_line(
        invoke("count", shard, "-o", counts, "--export", shard), "did not write", after_notes=True
    )
    assert_one_line(
        invoke("count", shard, "-o", counts, "--export", shard, "--force"),
        "did not write",
        after_notes=True,
    )
    assert_one_line(
        invoke("count", shard, "-o", counts, "--export", counts, "--force"),
        "did not write",
        after_notes=True,
    )
    assert invoke("count", shard, "-o", counts, "--export", tmp_path / "x.parquet")[0] == 0
    assert invoke("count", shard, "-o", counts, "--export", tmp_path / "x.parquet")[0] == 0
    other = [
        "count",
        shard,
        "--limit-tokens",
        20,
        "-o",
        tmp_path / "d.duckdb",
        "--export",
        tmp_path / "x.parquet",
    ]
    assert_one_line(invoke(*other), "contains other counts", after_notes=True)
    assert shard.read_bytes() == before
    assert counting.read_meta(counts)["num_documents"] == 5


def test_counts_may_move_once_models_are_scored(invoke, tmp_path, small_slices):
    slices = copy_of(small_slices, tmp_path)
    counts = Path(shutil.copy(small_slices.parent / "counts.duckdb", tmp_path / "c.duckdb"))
    text = [small_slices.parent / "valid.jsonl", small_slices.parent / "other.jsonl"]
    assert (
        invoke("slice", *text, "--counts", counts, "--seq-len", 64, "-o", slices, "--force")[0] == 0
    )
    compared = ["gap", "control:recall", "control:bigram", "--slices", slices]
    assert invoke(*compared)[0] == 0
    counts.unlink()
    assert invoke(*compared)[0] == 0
    assert_one_line(
        invoke("score", "control:unigram", "--slices", slices, "--force"), "c.duckdb", "--counts"
    )


# ------------------------------------------------------------------------------------------ the gap


def test_the_same_numbers_stand_in_table_json_and_parquet(invoke, tmp_path, small_slices):
    arguments = [
        "gap",
        "control:recall",
        "control:bigram",
        "--slices",
        small_slices,
        "-o",
        tmp_path / "gap",
    ]
    status, out, _ = invoke(*arguments, "--json")
    assert status == 0
    as_json = json.loads(out)["gap"]
    assert pl.read_parquet(tmp_path / "gap" / "gap.parquet").to_dicts() == as_json
    status, table, _ = invoke(*arguments)
    row = next(r for r in as_json if r["source"] == "ALL" and r["slice"] == "ar_hit")
    line = next(line for line in table.splitlines() if line.startswith("control:bigram  "))
    shown = re.findall(r"-?[\d,]+\.\d+", line)
    every = {r["slice"]: r for r in as_json if r["source"] == "ALL"}
    expected = [
        *(f"{every[s]['ppl_model']:,.2f}" for s in ("all", "ar_hit", "other")),
        f"{every['all']['delta_nll']:.3f}",
    ]
    assert shown == [*expected, f"{100 * row['gain_model']:z.1f}"]
    for name in ("retained", "gap_share"):
        value, low, high = (
            f"{100 * row[f'{name}{end}']:z.0f}" for end in ("", "_ci_low", "_ci_high")
        )
        assert f"{value} ({low} to {high})" in line
    assert " with --full, figures with --figures DIR." in table
    assert len(table.splitlines()) <= 21
    assert "Where the gap lies" not in table
    assert "Where the gap lies" in invoke(*arguments, "--full")[1]


# --------------------------------------------------------------------------------- built-in default


@pytest.fixture(scope="module")
def brief_home(tmp_path_factory) -> Path:
    """A cache folder of its own for a default that is shorter than usual."""
    return tmp_path_factory.mktemp("brief")


@pytest.fixture
def briefly(invoke, brief_home, short_text, monkeypatch) -> None:
    """Three models of the zoo are compared on short passages of twelve documents."""
    monkeypatch.setenv("RECALLKIT_HOME", str(brief_home))
    named, models = builtin.named_models, ("zoo:attention", "zoo:hyena", "zoo:rwkv")
    monkeypatch.setattr(builtin, "MODELS", models)
    monkeypatch.setattr(
        builtin, "named_models", lambda given, default=models: named(given, default)
    )
    monkeypatch.setattr(builtin, "VALIDATION_TEXT", TextOptions(short_text(12, 800)))


def test_every_command_answers_without_arguments(invoke, briefly, tmp_path, monkeypatch):
    """Their built-in default does not change by what else is asked of the same text."""
    monkeypatch.chdir(tmp_path)
    # `count` reads three million tokens
    for command in (
        "slice",
        "score",
        "gap",
        "models",
        "sources",
        "tasks",
    ):
        status, out, err = invoke(command)
        assert status == 0, err
        assert out.strip()
    before = json.loads(invoke("gap", "--json")[1])
    assert (
        json.loads(invoke("slice", "--limit-tokens", 1000, "--seq-len", 64, "--json")[1])["path"]
        == "slices"
    )
    assert (
        json.loads(invoke("count", "--limit-tokens", 1000, "--json")[1])["path"] == "counts.duckdb"
    )
    after = json.loads(invoke("gap", "--json")[1])
    assert {**after, "timings": None} == {**before, "timings": None}


def test_the_demo_tells_how_much_was_recall(invoke, briefly):
    result = json.loads(invoke("demo", "--json")[1])
    rows = {(r["model"], r["slice"]): r for r in result["gap"]["gap"] if r["source"] == "ALL"}
    assert {model for model, _ in rows} == {"zoo:hyena", "zoo:rwkv"}
    for model in ("zoo:hyena", "zoo:rwkv"):
        hits, others = rows[model, "ar_hit"], rows[model, "other"]
        # What the papers show at scale: these models are far behind on AR hits, and little behind
        # elsewhere.
        assert hits["delta_nll"] > 1 > others["delta_nll"] > -0.3
        assert hits["gap_share_ci_low"] < hits["gap_share"] < hits["gap_share_ci_high"]
        assert hits["retained"] < 0.03, "they learnt no recall"
    assert Path(result["gap"]["path"], "gap.parquet").is_file()
    assert "zoo:hyena" in Path(result["page"]).read_text(encoding="utf-8")
    assert {row["model"] for row in result["intervene"]["retained"]} == {"zoo:based", "zoo:mamba"}
    printed = invoke("demo")[1]
    assert len(printed.splitlines()) <= 30
    line = next(line for line in printed.splitlines() if line.startswith("hyena  "))
    assert line.split()[-1] == f"{100 * rows['zoo:hyena', 'repeated']['gap_share']:.0f}"
    example = ROOT.joinpath("README.md").read_text(encoding="utf-8").split("```")[1]
    heads = [set(text.split("─")[0].split()) for text in (example, printed.partition("\n\n")[2])]
    assert {"retained,", "gap,"} < heads[0] <= heads[1]


# ----------------------------------------------------------------------------------------- start-up


@pytest.fixture
def a_defect(monkeypatch, tmp_path):
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("what is\nmissing\x1b[31m")

    monkeypatch.setattr(counting, "count", broken)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_defect_is_one_line_and_a_report(invoke, a_defect, tmp_path):
    result = invoke("count", "demo", "-o", tmp_path / "c.duckdb")
    [report] = tmp_path.iterdir()
    assert_one_line(
        result,
        "recallkit: internal error (RuntimeError: what is)",
        "please report it with",
        str(report),
        code=70,
    )
    text = report.read_text()
    assert "in broken" in text
    assert f"recallkit {__version__}, Python " in text
    assert "missing\\x1b[31m" in text
    assert "\x1b" not in result[2]
