"""Needles in a haystack: rows counted in ids, and `eval-recall --tasks niah` with models whose
accuracy is known."""

from __future__ import annotations

import contextlib
import json
from dataclasses import astuple

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.recall.needles import DEPTHS, make_needle_rows
from recallkit.recall.prompts import GENERATED_TOKENS
from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall
from recallkit.recall.tasks import NEEDLE_TASKS, TASKS
from recallkit.text.tokenizers import load_tokenizer

LENGTHS = [512, 1024]


def rows_of(task: str, tokenizer, **changes):
    options = {"lengths": LENGTHS, "samples": len(DEPTHS), "seed": 0, "data": None, **changes}
    return make_needle_rows(TASKS[task].needles, task, tokenizer, **options)


@pytest.mark.parametrize(
    ("task", "tokenizer"),
    [*((task, None) for task in NEEDLE_TASKS), ("niah_multikey_1", "bytes")],
)
def test_prompts_are_as_long_and_needles_as_deep_as_said(task, tokenizer):
    """To a few ids, which parts that are encoded together may have fewer of."""
    encoder, needles = load_tokenizer(tokenizer), TASKS[task].needles
    scale = 1 if tokenizer is None else 4

    def size(text: str) -> int:
        return len(encoder.encode([text])[0])

    rows = rows_of(task, encoder, lengths=[scale * length for length in LENGTHS])
    assert [(row.length, row.depth) for row in rows] == [
        (scale * length, depth) for depth in DEPTHS for length in LENGTHS
    ]
    for row in rows:
        assert row.length - 8 <= size(row.text) + GENERATED_TOKENS <= row.length
        head, _, rest = row.text.partition("\n")
        context, _, question = rest.rpartition("\n")
        needle = f"One of the special magic {needles.kind}s for {row.key} is: {row.value}."
        before, is_in, after = context.partition(needle)
        assert is_in
        assert not before.strip() or before.rstrip()[-1] in ".!?\"')]", (
            "a needle follows a sentence"
        )
        assert size(before) == pytest.approx(row.depth * (size(before) + size(after)), abs=4)
        assert row.text.count(row.value) == 1
        assert context.count("One of the special magic ") == needles.keys
        assert question.count(row.key) == 2
        assert question.endswith(
            f"The special magic {needles.kind} for {row.key} mentioned in the provided text is",
        )
        assert f"about the {needles.kind} afterwards." in head
        if needles.haystack == "noise":
            assert before.endswith("again.\n") or not before
            assert (
                "The grass is green. The sky is blue. The sun is yellow. Here we go. There and "
                "back again.\n"
            ) in context
    values = [row.value for row in rows]
    assert len(set(values)) == len(rows)
    assert {len(value) for value in values} == {36 if needles.kind == "uuid" else 7}


def test_the_same_seed_makes_the_same_rows(tmp_path):
    encoder = load_tokenizer(None)
    rows = [list(map(astuple, rows_of("niah_multikey_1", encoder, seed=n))) for n in (0, 0, 1)]
    assert rows[0] == rows[1]
    assert not set(rows[0]) & set(rows[2])
    text = tmp_path / "mine.txt"
    text.write_text("Ein Satz ohne Punkt über nichts und wieder nichts\n" * 3, encoding="utf-8")
    assert all(
        row.text.count("ohne Punkt") > 3 for row in rows_of("niah_single_2", encoder, data=text)
    ), "a short text is repeated"


def test_one_that_copies_finds_every_needle_and_one_that_reads_nothing_none(run, home, tmp_path):
    options = ["--tasks", "niah", "--lengths", "256,512", "--samples", 11, "-o", tmp_path / "out"]
    done = run(
        "eval-recall",
        "control:copy",
        "control:unigram",
        *options,
        "--json",
        "--figures",
        tmp_path / "figures",
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    assert {(row["model"], row["task"]): row["accuracy"] for row in output["recall"]} == {
        (model, task): float(model == "control:copy")
        for task in NEEDLE_TASKS
        for model in ("control:copy", "control:unigram")
    }
    cells = {
        (row["length"], row["depth"], row["accuracy"], row["num_rows"])
        for row in output["by_depth"]
        if row["model"] == "control:copy"
    }
    assert cells == {(length, depth, 1.0, 1) for length in (256, 512) for depth in DEPTHS}
    assert {f"recall_depth_{task}.svg" for task in NEEDLE_TASKS} < {
        path.name for path in (tmp_path / "figures").iterdir()
    }
    shown = " ".join(
        run("eval-recall", "control:copy", "control:unigram", *options, "--full").stdout.split(),
    )
    assert "niah_multikey_1: accuracy by depth of the needle, for each length in ids" in shown
    assert f"control:copy {'█' * 11} {'█' * 11} control:unigram {'▁' * 11} {'▁' * 11}" in shown
    assert "Greedy, 48 tokens. Points are differences from control:copy." in shown
    documents = pl.read_parquet(
        documents_path(tmp_path / "out", "control:unigram", "niah_single_1-v1"),
    )
    assert documents["occurrences"].unique().to_list() == [1]


@pytest.mark.ci
def test_models_of_the_zoo_are_asked_what_they_can_read(home, tmp_path):
    """256 ids by default, with attention and with a state alike; a line break ends no generation,
    as in RULER."""
    options = RecallOptions(samples=2)
    tables, _ = evaluate_recall(
        ["zoo:attention", "zoo:mamba"],
        ["niah_single_1"],
        tmp_path,
        options,
    )
    assert tables.by_depth["length"].unique().to_list() == [256]
    assert tables.recall["truncated"].to_list() == [0, 0]
    nlls = tables.recall["answer_nll"].to_list()
    assert nlls[0] < nlls[1] - 1, "attention recalls digits that it does not write"
    generated = pl.read_parquet(documents_path(tmp_path, "zoo:attention", "niah_single_1-v1"))[
        "generation"
    ]
    assert any("\n" in text for text in generated)
    again, _ = evaluate_recall(["zoo:attention", "zoo:mamba"], ["niah_single_1"], tmp_path, options)
    assert again.by_depth.equals(tables.by_depth)
    with pytest.raises(UserError, match="already made with other options"):
        evaluate_recall(
            ["zoo:attention"],
            ["niah_single_1"],
            tmp_path,
            RecallOptions(samples=2, seed=1),
        )


def test_mistakes_are_one_line(run, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.txt").write_text("\n \n")
    (tmp_path / "short.py").write_text(
        "import dataclasses\n"
        "from recallkit.models.loading import load_model\n"
        "from recallkit.models.spec import ModelSpec\n"
        "def load(plan):\n"
        "    return load_model(dataclasses.replace(plan, spec=ModelSpec('zoo:attention')))\n",
    )
    for words, said in (
        (
            "zoo:attention --tasks niah --lengths 1k",
            (
                "zoo:attention: reads 256 ids, and prompts of niah_single_1 with their answers "
                "have up to"
            ),
        ),
        (
            "zoo:attention tiny=zoo:mamba,tokenizer=bytes --tasks niah_single_1",
            "tiny: reads 256 ids, and prompts of niah_single_1",
        ),
        (
            "control:unigram --tasks niah_single_3 --lengths 99",
            (
                "99 ids leave no room for a haystack besides the needles, the question and its "
                "answer; give longer ones, or leave"
            ),
        ),
        ("control:unigram --tasks niah --lengths 1x", "'1x' is not a number of ids"),
        ("control:unigram --tasks niah --cut answer", "--cut: does not apply to niah_single_1, "),
        (
            "control:unigram --tasks metadata --seed 3",
            "--seed: applies only to needles in a haystack",
        ),
        ("control:unigram --tasks niah_single_2 --data empty.txt", "no text"),
        (
            "control:unigram --tasks niah_single_1 --data empty.txt",
            "whose haystack is repeated sentences",
        ),
        (
            "control:unigram --tasks niah,fda --data empty.txt",
            "--data: means rows for fda, but the text of the haystack for niah",
        ),
        (
            "short.py:load --tasks niah_single_1 --lengths 512 --samples 1",
            "reads 256 ids, and a prompt with its answer has 51",
        ),
    ):
        done = run("eval-recall", *words.split(), "-o", tmp_path / "out")
        assert done.returncode in (1, 2), words
        assert said in done.stderr.splitlines()[-1], (words, done.stderr)


@pytest.mark.parametrize("task", ["niah_single_3", "niah_multikey_1"])
def test_the_shortest_prompts_have_all_their_needles_too(task):
    encoder, rows = load_tokenizer(None), []
    for length in range(200, 280, 8):
        with contextlib.suppress(UserError):
            rows += rows_of(task, encoder, lengths=[length])
    assert min(row.length for row in rows) < 260
    for row in rows:
        assert len(encoder.encode([row.text])[0]) + GENERATED_TOKENS <= row.length
        assert row.text.count("One of the special magic ") == TASKS[task].needles.keys
