"""`recallkit eval-recall` as a user meets it: accuracies counted independently, cuts counted, work
reused and resumed, mistakes."""

from __future__ import annotations

import gc
import json
import multiprocessing
import weakref
from pathlib import Path

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.models import evaluated
from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall
from recallkit.recall.tasks import load_rows
from recallkit.recall.view import answer
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import ROOT, made_up_texts

CONTROLS = ["control:copy", "control:recall", "control:unigram"]
NUM_ROWS = 8


def write_rows(path: Path, number: int = NUM_ROWS, *, ending: str = "") -> Path:
    """Documents `name: value`, of many lengths, that ask for one of their names; two rows a
    document."""
    rows = []
    for i, text in enumerate(made_up_texts(number, 120, seed=9)):
        words = text.replace("\n", " ")
        rows.append(
            {
                "doc_id": f"d{i // 2}",
                "key": "Name",
                "value": f" value{i}",
                "text": f"Name: value{i}\n{words}\nName:{ending}",
            },
        )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_rows(tmp_path / "fda.jsonl")


def documents(out: Path, model: str, variant: str = "fda-v1") -> pl.DataFrame:
    return pl.read_parquet(documents_path(out, model, variant))


@pytest.mark.ci
def test_controls_are_told_apart_on_real_documents(home, test_data, tmp_path):
    """One copies, one knows nothing of the context."""
    tables, _ = evaluate_recall(
        CONTROLS,
        ["fda", "swde", "squad"],
        tmp_path,
        RecallOptions(data=test_data / "evals", limit=8),
    )
    for task, least in (("fda", 0.95), ("swde", 0.9), ("squad", 0.7)):
        accuracy, nll = (
            dict(tables.recall.filter(task=task).select("model", name).rows())
            for name in ("accuracy", "answer_nll")
        )
        assert accuracy["control:copy"] > least
        assert accuracy["control:unigram"] <= 0.125
        assert nll["control:copy"] is None
        assert nll["control:recall"] < nll["control:unigram"]


def test_without_arguments_the_controls_are_asked_about_packages_once(run):
    done = run("eval-recall", "--limit", 20, "--json")
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)
    rows = {row["model"]: row for row in output["recall"]}
    assert list(rows) == CONTROLS
    assert [row["accuracy"] for row in rows.values()][::2] == [1.0, 0.0]
    assert rows["control:unigram"]["difference"] == -1.0
    tables = {
        f"{name}.parquet"
        for name in ("recall", "by_distance", "by_occurrences", "by_length", "by_depth")
    }
    assert {path.name for path in Path(output["path"]).iterdir()} == {*tables, "manifest.json"}
    table = run("eval-recall", "--limit", 20)
    assert "control:unigram" in table.stdout
    assert "100.0 points fewer" in " ".join(table.stdout.split())
    assert not table.stderr, "what is done is reused, without a word"


def test_a_documents_table_says_what_happened(home, rows, tmp_path):
    tables, folder = evaluate_recall(
        ["control:copy", "control:recall"],
        ["fda"],
        tmp_path / "out",
        RecallOptions(data=rows),
    )
    table = documents(tmp_path / "out", "control:recall")
    tokenizer = load_tokenizer(None)
    for row, document in zip(load_rows("fda", rows).rows, table.to_dicts(), strict=True):
        assert (document["doc_id"], document["key"], document["value"]) == (
            row.doc_id,
            "Name",
            row.value.strip(),
        )
        ids = tokenizer.encode([row.text])[0]
        before = tokenizer.encode([row.text[: row.text.index("value")]])[0]
        assert (document["prompt_text"], document["prompt_tokens"]) == (row.text, len(ids))
        assert document["answer_distance"] in (
            len(ids) - len(before),
            len(ids) - len(before) + 1,
        ), "the token may begin with the space"
        assert document["occurrences"] == 1
        assert document["contains"] == (row.value.strip().lower() in document["generation"].lower())
        assert document["answer_tokens"] == len(tokenizer.encode([row.value])[0])
    assert documents(tmp_path / "out", "control:copy")["contains"].all()
    assert answer(tables).startswith(
        "On fda, control:copy gives the value in 100.0 % of 8 prompts (95 % interval ",
    )
    assert tables.recall["num_documents"].to_list() == [NUM_ROWS // 2] * 2
    assert pl.read_parquet(folder / "recall.parquet").equals(tables.recall)


def test_cut_prompts_and_lost_answers_are_counted(run, home, tiny_model, rows, tmp_path):
    model, out = str(tiny_model("llama")), tmp_path / "out"
    done = run("eval-recall", model, "--tasks", "fda", "--data", rows, "--context", 120, "-o", out)
    assert done.returncode == 0, done.stderr
    tokenizer = load_tokenizer(None)
    cut = [
        max(0, len(tokenizer.encode([row.text])[0]) - (120 - 48))
        for row in load_rows("fda", rows).rows
    ]
    lost = [number > 4 for number in cut]  # the answer is at the beginning
    table = documents(out, model)
    assert table["tokens_cut"].to_list() == cut
    assert table["truncated"].to_list() == [number > 0 for number in cut]
    assert table["answer_cut"].to_list() == lost
    assert table.filter("answer_cut")["answer_distance"].null_count() == sum(lost)
    assert 0 < sum(lost) < NUM_ROWS
    line = (
        f"of {NUM_ROWS} prompts, {sum(number > 0 for number in cut)} cut on the left to fit its "
        "context, "
    )
    assert f"{line}{sum(lost)} whose answer was only in what was cut" in " ".join(
        done.stdout.split(),
    )


def test_prompts_read_twice_and_documents_cut_around_the_answer_are_results_of_their_own(
    home,
    rows,
    tmp_path,
):
    for prompt, cut in (("standard", "left"), ("twice", "left"), ("twice", "answer")):
        evaluate_recall(
            ["control:copy"],
            ["fda"],
            tmp_path,
            RecallOptions(data=rows, prompt=prompt, cut=cut),
        )
    standard, twice = (
        documents(tmp_path, "control:copy"),
        documents(tmp_path, "control:copy", "fda-v1-twice"),
    )
    assert (twice["occurrences"] == 2).all()
    assert (twice["prompt_tokens"] > 1.8 * standard["prompt_tokens"] - 8).all()
    assert twice["contains"].all()
    assert documents(tmp_path, "control:copy", "fda-v1-twice-answer-cut")[
        "task"
    ].unique().to_list() == ["fda"]


def test_everything_that_decides_numbers_is_told_apart(home, rows, tmp_path):
    def evaluate(**changes) -> pl.DataFrame:
        return evaluate_recall(
            ["control:unigram"],
            ["fda"],
            tmp_path / "out",
            RecallOptions(data=rows, **changes),
        )[0].recall

    assert evaluate()["num_rows"][0] == evaluate(limit=1000)["num_rows"][0] == NUM_ROWS, (
        "all rows are all rows"
    )
    for changes, said in (
        ({"limit": 3}, r"already made with other options \(differs in num_rows\)"),
        ({"model_tokenizer": "bytes"}, "tokenizer"),
        ({"context": 90}, "differs in context"),
    ):
        with pytest.raises(UserError, match=said):
            evaluate(**changes)
    assert evaluate(context=90, force=True)["truncated"][0] > 0
    write_rows(rows, NUM_ROWS + 1)
    with pytest.raises(UserError, match="differs in num_rows, rows"):
        evaluate(context=90)
    assert evaluate(task_version=0)["num_rows"][0] == NUM_ROWS + 1, (
        "another version is another table"
    )


ANSWERS = [["drained", "FEN"], ["fen"], ["nothing", "no more"], ["nothing"]]


def write_questions(path: Path, answers=ANSWERS) -> Path:
    """The same question for each list of answers; a copy of the sentence that shares most with it
    says `fen`."""
    fields = {
        "context": "Eels are many here. They call the flood a fen. It was drained.",
        "question": "They call a flood the",
        "orig_question": "What is it?",
    }
    path.write_text(
        "".join(json.dumps({**fields, "answers": several}) + "\n" for several in answers),
        encoding="utf-8",
    )
    return path


def test_any_of_several_answers_is_right(home, run, tmp_path):
    """In the documents and the comparison; the NLL is that of the answer that the context
    contains."""
    data = write_questions(tmp_path / "drop.jsonl")
    done = run(
        "eval-recall",
        "control:copy",
        "control:recall",
        "--tasks",
        "drop",
        "--data",
        data,
        "-o",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert (
        "drop: 4 prompts of 4 documents; any of several answers is right; not comparable"
        in " ".join(done.stdout.split())
    )
    table = documents(tmp_path, "control:copy", "drop-v1")
    assert (
        table["contains"].to_list() == table["contains_any"].to_list() == [True, True, False, False]
    )
    assert table["value"].to_list() == ["drained", "fen", "nothing", "nothing"]
    assert table["occurrences"].to_list() == [1, 1, 0, 0]
    [folder] = (tmp_path / "compared").iterdir()
    assert pl.read_parquet(folder / "recall.parquet").filter(model="control:copy")[
        "accuracy"
    ].to_list() == [0.5]
    cached, tokenizer = documents(tmp_path, "control:recall", "drop-v1"), load_tokenizer(None)
    assert cached["answer_tokens"].to_list() == [
        len(tokenizer.encode([f" {value}"])[0]) for value in table["value"]
    ]
    assert cached["answer_nll"][2] == cached["answer_nll"][3] != cached["answer_nll"][1]


@pytest.mark.parametrize(("example", "num_rows"), [("10_question_rows", 4), ("04_recall_rows", 5)])
def test_the_examples_of_rows_of_ones_own_are_answered_by_copying(
    home, tmp_path, example, num_rows
):
    tables, _ = evaluate_recall(
        ["control:copy"],
        ["own"],
        tmp_path,
        RecallOptions(data=ROOT / "examples" / f"{example}.jsonl"),
    )
    [row] = tables.recall.to_dicts()
    assert (row["num_rows"], row["num_documents"], row["accuracy"]) == (num_rows, 3, 1.0)


def test_mistakes_are_one_line_before_any_work(home, run, rows, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text(json.dumps({"text": "a:", "value": " "}) + "\n")
    for model, task, changes, said in (
        ("control:unigram", "fad", {}, "did you mean fda?"),
        ("no/such/model/here", "fda", {}, "no such file or directory"),
        ("control:unigram", "swde", {"data": Path("nothing")}, "no such file or folder"),
        ("control:nothing", "fda", {}, "no such control model"),
        ("control:unigram", "own", {"data": Path("empty.jsonl")}, "no row has a value"),
        (
            str(tiny_model("gpt_neox", vocab_size=8192)),
            "fda",
            {},
            "its vocabulary of 8,192 entries is not that of recallkit-4k",
        ),
    ):
        with pytest.raises(UserError) as mistake:
            evaluate_recall(
                ["control:bigram", model],
                [task],
                tmp_path / "out",
                RecallOptions(**{"data": rows, **changes}),
            )
        assert said in mistake.value.line()
        assert "\n" not in mistake.value.line()
    assert (
        run(
            "eval-recall",
            "control:unigram",
            "--data",
            rows,
            "-o",
            "out",
            "--lm-eval-task",
            "nothere.yaml",
        ).returncode
        == 1
    )
    assert not Path("out").exists()


def test_a_name_is_what_results_show(run, home, rows, tmp_path):
    """Of a model that was evaluated without one, too: it is the same table under another name."""
    out = ["--tasks", "fda", "--data", rows, "-o", tmp_path / "out", "--json"]
    done = run(
        "eval-recall",
        "cache=control:recall",
        "control:unigram",
        "short=control:unigram,context=128",
        *out,
    )
    assert done.returncode == 0, done.stderr
    output = json.loads(done.stdout)["recall"]
    assert [row["model"] for row in output] == ["cache", "control:unigram", "short"]
    assert {row["reference"] for row in output} == {"cache"}
    complete, short = (documents(tmp_path / "out", name) for name in ("control:unigram", "short"))
    assert (complete["tokens_cut"].max(), short["tokens_cut"].max()) == (
        0,
        complete["prompt_tokens"].max() - (128 - 48),
    )
    folders = {path.name for path in (tmp_path / "out/documents").iterdir()}
    names = ("cache", "control:unigram", "short")
    assert folders == {documents_path(tmp_path, name, "x").parent.name for name in names}
    wrong = run("eval-recall", "cache=control:unigram", *out)
    assert "already made with other options" in wrong.stderr
    assert "give this model another name" in wrong.stderr


def test_a_failure_later_on_keeps_what_is_whole(run, home, rows, tmp_path):
    """What the function of a user's model does shows when it is called."""
    (tmp_path / "fails.py").write_text("def load(request):\n    raise ValueError('no weights')\n")
    command = [
        "eval-recall",
        "control:unigram",
        f"{tmp_path / 'fails.py'}:load",
        "--tasks",
        "fda",
        "--data",
        rows,
    ]
    done = run(*command, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "raised ValueError: no weights" in done.stderr
    assert "1 of 2 tables are complete" in done.stderr
    assert len(documents(tmp_path / "out", "control:unigram")) == NUM_ROWS


def test_one_model_is_in_memory_at_a_time(home, rows, tmp_path, monkeypatch):
    """Several large models would not fit beside each other."""
    load, loaded = evaluated.load_model, []

    def watched(request):
        gc.collect()
        assert not [model for model in loaded if model() is not None], (
            "the model before is still there"
        )
        model = load(request)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(evaluated, "load_model", watched)
    (tmp_path / "squad.jsonl").write_bytes(rows.read_bytes())
    evaluate_recall(
        ["control:unigram", "control:bigram"],
        ["fda", "squad"],
        tmp_path / "out",
        RecallOptions(data=tmp_path, limit=2),
    )
    assert len(loaded) == 2, "once for all tasks"


def yaml_task(folder: Path, name: str, rows: list[dict], config: str) -> Path:
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = (
        "dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
        f"{folder / name}.jsonl\ntest_split: test\n"
    )
    (folder / f"{name}.yaml").write_text(f"task: {name}\n{data}{config}")
    return folder / f"{name}.yaml"


def test_tasks_of_lm_eval_run_unchanged_and_leave_stdout_to_json(run, home, tmp_path, monkeypatch):
    """lm-eval prints a line to stdout where a metric, such as perplexity, is bootstrapped, and
    would start processes for it."""
    monkeypatch.setattr(multiprocessing, "Pool", None)
    data = [
        {"question": "the state of", "answer": 1},
        {"question": "the state of", "answer": 0},
        {"question": "of the", "answer": 1},
    ]
    choice = (
        "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_target: "
        "answer\ndoc_to_choice: ['xylophone', 'the']\n"
    )
    parity = yaml_task(
        tmp_path,
        "parity",
        data,
        f"{choice}metric_list:\n  - metric: acc\nmetadata:\n  version: 3.0\n",
    )
    scored = (
        "output_type: loglikelihood\ndoc_to_text: '{{text}}'\ndoc_to_target: ' "
        "{{end}}'\nmetric_list:\n  - metric: perplexity\n"
    )
    words = yaml_task(
        tmp_path,
        "words",
        [{"text": "a", "end": "b"}, {"text": "of", "end": "the"}],
        scored,
    )
    model, out = "control:bigram", tmp_path / "out"
    done = run(
        "eval-recall",
        model,
        "--lm-eval-task",
        parity,
        "--lm-eval-task",
        words,
        "-o",
        out,
        "--json",
    )
    assert done.returncode == 0, done.stderr
    row, perplexity = json.loads(done.stdout)["metrics"]
    assert (row["task"], row["version"], row["metric"], row["num_documents"]) == (
        "parity",
        "3.0",
        "acc",
        3,
    )
    assert row["value"] == pytest.approx(2 / 3), "a bigram model prefers `the`"
    assert (perplexity["task"], perplexity["value"] > 1) == ("words", True)
    results = [
        json.loads(path.read_text())["results"]
        for path in (out / "lm-eval" / "control__bigram").glob("results_*.json")
    ]
    assert any(
        "parity" in tasks and tasks["parity"]["acc,none"] == row["value"] for tasks in results
    )
    command = ["eval-recall", model, "--lm-eval-task", parity, "-o", out]
    assert "parity v3.0" in run(*command).stdout
    assert len(list((out / "lm-eval" / "control__bigram").glob("results_*.json"))) == 2, "reused"
    [with_example] = json.loads(run(*command, "--shots", 1, "--json").stdout)["metrics"]
    assert (with_example["shots"], row["shots"]) == (1, 0)
    (tmp_path / "parity.jsonl").write_text(json.dumps(data[0]) + "\n")
    assert "differs in requests" in run(*command).stderr, "other data, other metrics"
    assert (
        "--shots: is for tasks of lm-eval"
        in run("eval-recall", model, "--shots", 1, "-o", out).stderr
    )
    refused = run("eval-recall", "control:copy", "--lm-eval-task", parity, "-o", out)
    assert "it copies text and has no likelihoods" in refused.stderr
