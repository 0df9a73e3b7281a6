"""`recallkit tokens`: what is shown of a sequence is what its tables say, and text never commands a
terminal."""

from __future__ import annotations

import json
import re
import shutil

import polars as pl
import pytest

from recallkit import attribution, scoring, slicing
from recallkit.display import console
from recallkit.options import TextOptions
from recallkit.report.sequence import open_excerpts
from recallkit.report.token_view import ScoredSequence, print_tokens
from recallkit.storage import parquet_files
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl

REFERENCE, MODEL = "control:recall", "control:bigram"


@pytest.fixture(scope="module")
def slices(tmp_path_factory, small_slices):
    """Slices with hostile text, two models scored, and their comparison."""
    folder = tmp_path_factory.mktemp("tokens")
    texts = made_up_texts(12, 60, seed=5)
    texts[3] = (
        "scan \x1b[31mred\x1b[0m \u202etxet\u202c \x07 key \r pair [bold]x[/bold] :fire: 界 "
        "Zoë\tkey pair scan \x1b[31m key pair\n"
    ) * 3
    write_jsonl(folder / "text.jsonl", texts, "books")
    options = TextOptions([str(folder / "text.jsonl")], "validation")
    counts = small_slices.parent / "counts.duckdb"
    slicing.slice_text(
        options, folder / "slices", counts=counts, rare=slicing.RareCount(20), seq_len=64
    )
    attribution.gap(REFERENCE, [MODEL, "control:unigram"], folder / "slices")
    return folder / "slices"


def expected(slices, model, sequence) -> pl.DataFrame:
    scores = pl.read_parquet(scoring.score_path(slices, model)).filter(sequence=sequence)
    return (
        pl.read_parquet(slices / "tokens.parquet")
        .filter(sequence=sequence)
        .join(scores, on=["sequence", "position"])
    )


def test_a_sequence_is_its_rows_with_its_text_and_the_earlier_occurrences(slices):
    tokenizer, excerpts = load_tokenizer(None), open_excerpts(slices, [REFERENCE, MODEL])
    sequences = pl.read_parquet(slices / "sequences.parquet")["tokens"]
    assert excerpts.num_sequences == len(sequences)
    for number, ids in enumerate(sequences.to_list()):
        rows = excerpts.read(number)
        assert rows["position"].to_list() == list(range(1, len(ids)))
        for place, model in enumerate((REFERENCE, MODEL)):
            found = expected(slices, model, number)
            assert rows[f"right_{place}"].to_list() == [rank == 0 for rank in found["rank"]]
            assert rows[f"predicted_{place}"].to_list() == excerpts.text_of(found["argmax"])
        text = "".join(rows["text"])
        assert "\\x" in text or text.encode() == b"".join(
            tokenizer.token_bytes[index] for index in ids[1:]
        )
        for row in rows.filter("repeated").iter_rows(named=True):
            assert ids[row["earlier"] - 1 : row["earlier"] + 1] == [row["prev_token"], row["token"]]
        assert (
            rows.filter(~pl.col("repeated"))["earlier"].null_count()
            == rows.filter(~pl.col("repeated")).height
        )


def test_the_most_telling_sequence_is_where_the_models_differ_most(slices):
    sums = []
    excerpts = open_excerpts(slices, [REFERENCE, MODEL])
    for number in range(excerpts.num_sequences):
        hits = excerpts.read(number).filter("ar_hit")
        sums.append(abs(hits["nll_1"].cast(float).sum() - hits["nll_0"].cast(float).sum()))
    assert excerpts.most_telling() == max(
        range(len(sums)), key=lambda number: (sums[number], -number)
    )


def shown_in(monkeypatch, capsys, shown, *, colours: bool) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("FORCE_COLOR", "1") if colours else monkeypatch.delenv(
        "FORCE_COLOR", raising=False
    )
    console.terminal.cache_clear()
    capsys.readouterr()
    print_tokens(shown)
    console.terminal.cache_clear()
    return capsys.readouterr().out


def shown_sequence(slices, number, models=(REFERENCE, MODEL)) -> ScoredSequence:
    excerpts = open_excerpts(slices, models)
    rows = excerpts.read(number)
    reference, model = models if len(models) == 2 else (None, *models) if models else (None, None)
    before = excerpts.text_of(rows["prev_token"].head(1))[0]
    return ScoredSequence(
        number,
        excerpts.num_sequences,
        rows,
        before,
        reference,
        model,
        has_counts=excerpts.has_counts,
    )


def test_brackets_say_in_a_pipe_what_colours_say_in_a_terminal(slices, monkeypatch, capsys):
    for number in range(3):
        shown = shown_sequence(slices, number)
        out = shown_in(monkeypatch, capsys, shown, colours=False)
        assert "\x1b" not in out
        signs = dict(
            zip(("both_right", "both_wrong", "reference_only", "model_only"), "²⁰ʳᵐ", strict=True)
        )
        hits = shown.rows["ar_hit"].to_list()
        text = out.split("\n\n")[1]
        marked = re.findall(r"⟦([^⟧]*)⟧(.)", text)
        assert [sign for _, sign in marked] == [
            signs[state] for state, hit in zip(shown.states(), hits, strict=True) if hit
        ]
        rights = [(row["right_0"], row["right_1"]) for row in shown.rows.iter_rows(named=True)]
        assert [state == "reference_only" for state in shown.states()] == [
            pair == (True, False) for pair in rights
        ]


@pytest.mark.parametrize("colours", [True, False])
def test_text_never_commands_a_terminal_and_fits_it(slices, monkeypatch, capsys, colours):
    from rich.cells import cell_len
    from rich.text import Text

    total = open_excerpts(slices).num_sequences
    everything = ""
    for number in range(total):
        out = shown_in(monkeypatch, capsys, shown_sequence(slices, number), colours=colours)
        everything += out
        assert max(cell_len(line) for line in Text.from_ansi(out).plain.split("\n")) <= 80
    assert not set(re.findall(r"\x1b\[[0-9;]*[^0-9;m]", everything)), (
        "colours are all that is said to the terminal"
    )
    assert "\x1b[31m" not in everything
    assert not {"\u202e", "\u202c", "\x07", "\r"} & set(everything)
    plain = re.sub("[⟦⟧⁰²ʳᵐ]", "", Text.from_ansi(everything).plain)
    assert "\\x1b" in plain
    assert "\\x202e" in plain or "\\xe2" in plain
    assert "fire" in plain
    assert "🔥" not in plain


def test_json_holds_every_token_with_all_that_is_known(run, slices):
    done = run(
        "tokens", slices, "--sequence", 1, "--model", MODEL, "--reference", REFERENCE, "--json"
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    tables = {
        side: expected(slices, model, 1)
        for side, model in (("reference", REFERENCE), ("model", MODEL))
    }
    assert (found["sequence"], found["reference"], found["model"]) == (1, REFERENCE, MODEL)
    assert [token["train_count"] for token in found["tokens"]] == tables["model"][
        "train_count"
    ].to_list()
    for side, table in tables.items():
        assert [token[side]["nll"] for token in found["tokens"]] == table["nll"].to_list()
        assert [token[side]["right"] for token in found["tokens"]] == [
            rank == 0 for rank in table["rank"]
        ]
    usual = json.loads(run("tokens", slices, "--sequence", 1, "--json").stdout)
    [folder] = (slices / "gap").iterdir()
    hits = (
        pl.read_parquet(folder / "gap.parquet")
        .filter(source="ALL", slice="ar_hit")
        .sort("delta_nll")
    )
    assert usual["model"] == hits["model"][-1], "the one farthest behind on AR hits"


def test_the_sequence_that_differs_most_is_shown_and_said(run, slices):
    done = run("tokens", slices, "--model", MODEL)
    number = open_excerpts(slices, [REFERENCE, MODEL]).most_telling()
    assert done.returncode == 0, done.stderr
    answer, where, _ = " ".join(done.stdout.split()).partition(f" Sequence {number} (0 to ")
    assert re.fullmatch(
        rf"{MODEL} needs [\d.]+ nats (more|less) than {REFERENCE} on .+ of this sequence, the largest difference of .+",
        answer,
    )
    assert where
    [folder] = (slices / "gap").iterdir()
    assert run("tokens", folder, "--model", MODEL).stdout == done.stdout, (
        "a comparison's folder is as good"
    )


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--sequence", "99999"], ["no sequence 99,999", "0 to"]),
        (
            ["--model", "control:copy"],
            ["control:copy", "not scored", REFERENCE, MODEL, "recallkit score control:copy"],
        ),
        (["--model", MODEL, "--reference", MODEL], ["twice"]),
    ],
)
def test_mistakes_are_told(run, slices, arguments, words):
    done = run("tokens", slices, *arguments)
    assert done.returncode in (1, 2)
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_a_folder_of_something_else_is_refused(run, slices, tmp_path):
    assert "neither a comparison nor slices" in run("tokens", tmp_path / "nowhere").stderr
    [folder] = (slices / "gap").iterdir()
    away = tmp_path / "away"
    away.mkdir()
    for path in folder.iterdir():
        (away / path.name).write_bytes(path.read_bytes())
    assert "--slices DIR" in run("tokens", away).stderr
    assert run("tokens", away, "--slices", slices, "--sequence", 0).returncode == 0


def test_what_a_model_with_its_own_tokenizer_predicted_is_not_told(
    slices, tmp_path, monkeypatch, capsys
):
    """Its tokens are no tokens of the slices: without an argmax there is no text, where its tokens
    end elsewhere nobody was right."""
    own = shutil.copytree(slices, tmp_path / "slices")
    path = scoring.score_path(own, MODEL)
    scores = pl.read_parquet(path).with_columns(
        argmax=pl.lit(-1, pl.Int32),
        exact=pl.col("position") % 3 > 0,
        rank=pl.when(pl.col("position") % 5 == 0).then(-1).otherwise(pl.col("rank")).cast(pl.Int32),
    )
    table = scores.to_arrow()
    parquet_files.write_parquet(path, [table], table.schema, parquet_files.read_manifest(path))
    shown = shown_sequence(own, 0)
    positions = shown.rows["position"].to_list()
    assert [right is None for right in shown.rows["right_1"]] == [
        p % 3 == 0 or p % 5 == 0 for p in positions
    ]
    assert shown.rows["predicted_1"].null_count() == len(positions)
    assert [state is None for state in shown.states()] == [
        p % 3 == 0 or p % 5 == 0 for p in positions
    ]
    out = shown_in(monkeypatch, capsys, shown, colours=False)
    assert "? unknown: its own tokens end" in " ".join(out.split())
    signs = re.findall(r"⟦[^⟧]*⟧(.)", out.split("\n\n")[1])
    hits = shown.rows.filter("ar_hit")["position"].to_list()
    assert [sign == "?" for sign in signs] == [p % 3 == 0 or p % 5 == 0 for p in hits]
    assert "–" in out.split("\n\n")[-2] or not shown.rows.filter("ar_hit").height
