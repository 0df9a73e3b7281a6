"""`recallkit eval-recall` as a user meets it: accuracies counted independently, cuts counted, work found again and gone on with."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from recallkit.errors import UserError
from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall
from recallkit.recall.tasks import expand_groups, load_rows
from recallkit.storage import artifacts
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import ROOT, made_up_texts

CONTROLS = ["control:copy", "control:recall", "control:unigram"]


def write_rows(path: Path, number: int = 12, *, ending: str = "") -> Path:
    """Documents `name: value`, of many lengths, that ask for one of their names."""
    rows = []
    for i, text in enumerate(made_up_texts(number, 120, seed=9)):
        words = text.replace("\n", " ")
        rows.append({"doc_id": f"d{i // 2}", "key": "Name", "value": f" value{i}", "text": f"Name: value{i}\n{words}\nName:{ending}"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def rows(tmp_path) -> Path:
    return write_rows(tmp_path / "fda.jsonl")


def documents(out: Path, model: str, variant: str = "fda-v1") -> pl.DataFrame:
    return pl.read_parquet(documents_path(out, model, variant))


@pytest.mark.parametrize("task", ["fda", "swde", "squad"])
def test_controls_on_real_documents(home, test_data, tmp_path, task):
    """One copies, one knows nothing of the context: the evaluation must tell them apart on each task."""
    tables, _ = evaluate_recall(CONTROLS, [task], tmp_path, RecallOptions(data=test_data / "evals", limit=60))
    accuracy = dict(tables.recall.select("model", "accuracy").rows())
    assert accuracy["control:copy"] > {"fda": 0.95, "swde": 0.9, "squad": 0.7}[task]
    assert accuracy["control:unigram"] <= 0.02
    nll = dict(tables.recall.select("model", "answer_nll").rows())
    assert nll["control:copy"] is None
    assert nll["control:recall"] < nll["control:unigram"]


def test_the_builtin_default(run):
    done = run("eval-recall", "--limit", 30, "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    rows = {row["model"]: row for row in found["recall"]}
    assert list(rows) == CONTROLS
    assert rows["control:copy"]["accuracy"] == 1.0
    assert rows["control:unigram"]["accuracy"] == 0.0
    assert rows["control:unigram"]["difference"] == -1.0
    tables = {f"{name}.parquet" for name in ("recall", "by_distance", "by_occurrences", "by_length")}
    assert {path.name for path in Path(found["path"]).iterdir()} == {*tables, "manifest.json"}
    table = run("eval-recall", "--limit", 30)
    assert "control:unigram" in table.stdout
    assert "-100.0" in table.stdout
    assert not table.stderr, "what is done is found again, without a word"


def test_a_documents_table_says_what_happened(home, rows, tmp_path):
    tables, folder = evaluate_recall(["control:copy", "control:recall"], ["fda"], tmp_path / "out", RecallOptions(data=rows))
    table = documents(tmp_path / "out", "control:recall")
    tokenizer = load_tokenizer(None)
    asked = load_rows("fda", rows).rows
    for row, document in zip(asked, table.to_dicts(), strict=True):
        assert (document["doc_id"], document["key"], document["value"]) == (row.doc_id, "Name", row.value.strip())
        ids = tokenizer.encode([row.text])[0]
        before = tokenizer.encode([row.text[: row.text.index("value")]])[0]
        assert document["prompt_tokens"] == len(ids)
        assert document["answer_distance"] in (len(ids) - len(before), len(ids) - len(before) + 1), "the token may begin with the space"
        assert document["occurrences"] == 1
        assert document["contains"] == (row.value.strip().lower() in document["generation"].lower())
        assert document["answer_tokens"] == len(tokenizer.encode([row.value])[0])
    assert documents(tmp_path / "out", "control:copy")["contains"].all()
    manifest = artifacts.read_manifest(documents_path(tmp_path / "out", "control:recall", "fda-v1"))
    assert manifest["options"]["version"] == 1
    assert tables.recall["num_documents"].to_list() == [6, 6]
    assert pl.read_parquet(folder / "recall.parquet").equals(tables.recall)


def test_versions_differ_where_spaces_do(home, tiny_model, tmp_path):
    plain, spaced = write_rows(tmp_path / "plain.jsonl"), write_rows(tmp_path / "spaced.jsonl", ending=" \n ")
    model = str(tiny_model("llama"))
    found = {}
    for data in (plain, spaced):
        for version in (0, 1):
            out = tmp_path / data.stem
            evaluate_recall([model], ["fda"], out, RecallOptions(data=data, task_version=version, context=4096))
            found[data.stem, version] = documents(out, model, f"fda-v{version}")
    asked = ["prompt_tokens", "generation"]
    assert found["plain", 1].select(asked).equals(found["spaced", 1].select(asked))
    assert (found["spaced", 0]["prompt_tokens"] > found["spaced", 1]["prompt_tokens"]).all()
    assert not found["spaced", 0]["generation"].equals(found["spaced", 1]["generation"])
    assert found["plain", 0]["generation"].equals(found["plain", 1]["generation"])
    assert found["plain", 0]["value"][0] == " value0"
    assert found["plain", 1]["value"][0] == "value0"


def test_cut_prompts_and_lost_answers_are_counted(run, home, tiny_model, rows, tmp_path):
    model, out = str(tiny_model("llama")), tmp_path / "out"
    done = run("eval-recall", model, "--tasks", "fda", "--data", rows, "--context", 120, "-o", out)
    assert done.returncode == 0, done.stderr
    tokenizer = load_tokenizer(None)
    lengths = [len(tokenizer.encode([row.text])[0]) for row in load_rows("fda", rows).rows]
    cut = [max(0, length - (120 - 48)) for length in lengths]
    table = documents(out, model)
    assert table["tokens_cut"].to_list() == cut
    assert table["truncated"].to_list() == [number > 0 for number in cut]
    assert table["answer_cut"].to_list() == [number > 4 for number in cut], "the answer stands at the beginning"
    assert table.filter("answer_cut")["answer_distance"].null_count() == sum(number > 4 for number in cut)
    truncated, lost = sum(number > 0 for number in cut), sum(number > 4 for number in cut)
    assert 0 < lost < 12
    line = f"of 12 prompts {truncated} cut on the left to fit its context, {lost} whose answer was only in what was cut"
    assert line in " ".join(done.stdout.split()), "on as many lines as it takes"


def test_prompts_read_twice_and_documents_cut_around_the_answer(home, rows, tmp_path):
    for prompt in ("standard", "twice"):
        for cut in ("left", "answer"):
            evaluate_recall(["control:copy"], ["fda"], tmp_path, RecallOptions(data=rows, prompt=prompt, cut=cut))
    standard, twice = documents(tmp_path, "control:copy"), documents(tmp_path, "control:copy", "fda-v1-twice")
    assert (twice["occurrences"] == 2).all()
    assert (twice["prompt_tokens"] > 1.8 * standard["prompt_tokens"] - 8).all()
    assert twice["contains"].all()
    assert documents(tmp_path, "control:copy", "fda-v1-answer-cut")["prompt_tokens"].max() <= 960
    assert documents(tmp_path, "control:copy", "fda-v1-twice-answer-cut")["task"].unique().to_list() == ["fda"]
    for written in (tmp_path / "lm-eval" / "control__copy").glob("results*"):
        metrics = json.loads(written.read_text(), parse_constant=pytest.fail)["results"]
        assert {name for of_task in metrics.values() for name in of_task if "," in name} == {"contains,none", "contains_stderr,none"}
    names = {path.name.split("_2")[0] for path in (tmp_path / "lm-eval" / "control__copy").glob("samples*")}
    assert names == {"samples_fda", "samples_fda_twice", "samples_fda_answer_cut", "samples_fda_twice_answer_cut"}


def test_other_options_and_other_rows_are_told_apart(home, rows, tmp_path):
    def evaluate(**changes) -> int:
        options = RecallOptions(data=rows, **changes)
        return int(evaluate_recall(["control:unigram"], ["fda"], tmp_path / "out", options)[0].recall["num_rows"][0])

    assert evaluate() == evaluate(limit=1000) == 12, "all rows are all rows"
    with pytest.raises(UserError, match=r"already made with other options \(differs in num_rows\)"):
        evaluate(limit=3)
    write_rows(rows, 13)
    with pytest.raises(UserError, match="differs in num_rows, rows"):
        evaluate()
    assert evaluate(force=True) == 13
    assert evaluate(task_version=0) == 13, "another version is another table"


def test_everything_that_decides_numbers_is_told_apart(home, rows, tmp_path):
    def evaluate(**changes) -> pl.DataFrame:
        options = RecallOptions(data=rows, cut="answer", **changes)
        return evaluate_recall(["control:recall"], ["fda"], tmp_path / "out", options)[0].recall

    evaluate()
    for changes, said in (({"model_tokenizer": "bytes"}, "tokenizer"), ({"context": 90}, "differs in context")):
        with pytest.raises(UserError, match=said):
            evaluate(**changes)
    assert evaluate(context=90, force=True)["truncated"][0] > 0


def test_other_accepted_answers(home, tmp_path):
    text = "Colour: Beta\nSize: Gamma \nColour:"
    asked = [("Beta", ["Omega", "Zeta"]), ("Omega", [" Beta "]), ("Omega", ["Zeta"]), ("Omega", None)]
    lines = [json.dumps({"text": text, "value": value, "key": "Colour", "answers": answers}) for value, answers in asked]
    (tmp_path / "mine.jsonl").write_text("\n".join(lines))
    evaluate_recall(["control:copy"], ["own"], tmp_path, RecallOptions(data=tmp_path / "mine.jsonl"))
    table = documents(tmp_path, "control:copy", "own-mine-v1")
    assert table["contains"].to_list() == [True, False, False, False]
    assert table["contains_any"].to_list() == [True, True, False, None]


ANSWERS = [["drained", "FEN"], ["fen"], ["nothing", "no more"], ["nothing"]]


def write_questions(path: Path, answers=ANSWERS) -> Path:
    """The same question for each list of answers; a copy of the sentence that shares most with it says `fen`."""
    asked = {
        "context": "Eels are many here. They call the flood a fen. It was drained.",
        "question": "They call a flood the",
        "orig_question": "What is it?",
    }
    path.write_text("".join(json.dumps({**asked, "answers": each}) + "\n" for each in answers), encoding="utf-8")
    return path


def test_any_of_several_answers_is_right(home, run, tmp_path):
    """In the documents, the comparison and lm-eval's files alike; the NLL is that of the answer that the context contains."""
    done = run(
        "eval-recall",
        "control:copy",
        "control:recall",
        "--tasks",
        "drop",
        "--data",
        write_questions(tmp_path / "drop.jsonl"),
        "-o",
        tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "drop: 4 prompts of 4 documents; any of several answers is right; comparable" in " ".join(done.stdout.split())
    table = documents(tmp_path, "control:copy", "drop-v1")
    assert table["contains"].to_list() == table["contains_any"].to_list() == [True, True, False, False]
    assert table["value"].to_list() == ["drained", "fen", "nothing", "nothing"]
    assert table["occurrences"].to_list() == [1, 1, 0, 0]
    [folder] = (tmp_path / "compared").iterdir()
    assert pl.read_parquet(folder / "recall.parquet").filter(model="control:copy")["accuracy"].to_list() == [0.5]
    [results] = (tmp_path / "lm-eval" / "control__copy").glob("results*")
    assert json.loads(results.read_text())["results"]["based_drop"]["contains,none"] == 0.5
    cached = documents(tmp_path, "control:recall", "drop-v1")
    tokenizer = load_tokenizer(None)
    assert cached["answer_tokens"].to_list() == [len(tokenizer.encode([f" {value}"])[0]) for value in table["value"]]
    assert cached["answer_nll"][2] == cached["answer_nll"][3] != cached["answer_nll"][1]


def test_all_tasks_of_jrt_once_and_twice(home, tmp_path):
    """Eight files, one call."""
    for task in ("swde", "fda", "squad"):
        write_rows(tmp_path / f"{task}.jsonl", 3)
    for task in ("nq_512", "nq_1024", "nq_2048", "triviaqa", "drop"):
        write_questions(tmp_path / f"{task}.jsonl")
    tasks = expand_groups(["jrt"])
    for prompt in ("once", "twice"):
        tables, _ = evaluate_recall(["control:copy"], tasks, tmp_path / "e", RecallOptions(data=tmp_path, prompt=prompt))
        found = dict(tables.recall.select("task", "accuracy").rows())
        assert list(found) == ["swde", "fda", "squad", "nq_512", "nq_1024", "nq_2048", "triviaqa", "drop"]
        assert set(found.values()) == {1.0, 0.5}
        assert found["squad"] == 1.0
        assert list((tmp_path / "e" / "compared").glob(f"jrt-v1-{prompt}.*")), "a group's name in place of its tasks'"
    once, twice = (documents(tmp_path / "e", "control:copy", f"drop-v1-{prompt}") for prompt in ("once", "twice"))
    assert (once["occurrences"].to_list(), twice["occurrences"].to_list()) == ([1, 1, 0, 0], [2, 2, 0, 0])
    (tmp_path / "drop.jsonl").unlink()
    with pytest.raises(UserError, match="no file for drop"):
        evaluate_recall(["control:copy"], tasks, tmp_path / "e", RecallOptions(data=tmp_path))


def test_contexts_are_cut_to_as_many_tokens_as_asked(home, run, tmp_path):
    data = write_questions(tmp_path / "nq_512.jsonl", [["nothing", "FEN"]])
    command = ["eval-recall", "control:copy", "--tasks", "nq_512", "--data", data, "-o", tmp_path / "e"]
    refused = run(*command, "--cut-tokens", 8)
    assert (refused.returncode, "--cut-tokens: is for documents cut around the answer; add --cut answer" in refused.stderr) == (2, True)
    lengths = {}
    for tokens in (8, 4, 950):
        options = RecallOptions(data=data, cut="answer", cut_tokens=tokens)
        evaluate_recall(["control:copy"], ["nq_512"], tmp_path / "e", options)
        table = documents(tmp_path / "e", "control:copy", "nq_512-v1-answer-cut" + ("" if tokens == 950 else f"-{tokens}"))
        lengths[tokens] = table["prompt_tokens"][0]
        assert table["occurrences"].to_list() == [1]
    assert 0 <= lengths[8] - lengths[4] - 4 <= 2, "what begins within a word costs a token or two"
    assert lengths[950] > lengths[8]
    manifests = [artifacts.read_manifest(path)["options"] for path in (tmp_path / "e").rglob("nq_512*.parquet")]
    assert sorted(str(options.get("cut_tokens")) for options in manifests) == ["4", "8", "None"]
    assert run(*command, "--cut", "answer", "--cut-tokens", 8).returncode == 0, "found again"


@pytest.mark.parametrize(("example", "asked"), [("10_question_rows", 4), ("04_recall_rows", 5)])
def test_the_examples_of_rows_of_ones_own_are_answered_by_copying(home, tmp_path, example, asked):
    tables, _ = evaluate_recall(["control:copy"], ["own"], tmp_path, RecallOptions(data=ROOT / "examples" / f"{example}.jsonl"))
    [row] = tables.recall.to_dicts()
    assert (row["num_rows"], row["num_documents"], row["accuracy"]) == (asked, 3, 1.0)


@pytest.mark.parametrize(
    ("model", "task", "changes", "said"),
    [
        ("control:unigram", "fad", {}, "did you mean fda?"),
        ("no/such/model/here", "fda", {}, "no such file or directory"),
        ("control:unigram", "swde", {"data": Path("nothing")}, "no such file or folder"),
        ("control:nothing", "fda", {}, "no such control model"),
        ("control:unigram", "fda", {"context": 48}, "has no room for a prompt"),
        ("control:unigram", "own", {"data": Path("empty.jsonl")}, "no row has a value"),
    ],
)
def test_mistakes_are_one_line(home, rows, tmp_path, monkeypatch, model, task, changes, said):
    monkeypatch.chdir(tmp_path)
    Path("empty.jsonl").write_text(json.dumps({"text": "a:", "value": " "}) + "\n")
    with pytest.raises(UserError) as mistake:
        evaluate_recall([model], [task], tmp_path / "out", RecallOptions(**{"data": rows, **changes}))
    assert said in mistake.value.line()
    assert "\n" not in mistake.value.line()


def test_a_name_is_what_results_show(run, home, rows, tmp_path):
    """Of a model that was evaluated without one, too: it is the same table under another name."""
    out = ["--tasks", "fda", "--data", rows, "-o", tmp_path / "out", "--json"]
    done = run("eval-recall", "cache=control:recall", "control:unigram", "short=control:unigram,context=128", *out)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["recall"]
    assert [row["model"] for row in found] == ["cache", "control:unigram", "short"]
    assert {row["reference"] for row in found} == {"cache"}
    cut = {name: documents(tmp_path / "out", name)["tokens_cut"].max() for name in ("short", "control:unigram")}
    assert cut == {"short": 169 - (128 - 48), "control:unigram": 0}
    assert {path.name for path in (tmp_path / "out/lm-eval").iterdir()} == {"cache", "control__unigram", "short"}
    wrong = run("eval-recall", "cache=control:unigram", *out)
    assert "already made with other options" in wrong.stderr
    assert "give this model another name" in wrong.stderr


def test_a_mistake_in_the_last_name_is_told_before_any_work(run, home, rows, tmp_path):
    command = ["eval-recall", "control:unigram", "--tasks", "fda", "--data", rows, "-o", tmp_path / "out"]
    for more in (["nothere"], ["--lm-eval-task", "nothere.yaml"]):
        assert run(*command, *more).returncode == 1
        assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_mistake_in_the_name_of_a_stock_task_is_told_before_any_work(run, home, rows, tmp_path):
    """lm-eval reads its fourteen thousand files first."""
    done = run("eval-recall", "control:unigram", "--data", rows, "-o", tmp_path / "out", "--lm-eval-task", "lambada_opena")
    assert done.returncode == 1
    assert "did you mean lambada_openai?" in done.stderr
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_checked_before_any_work(run, home, rows, tiny_model, tmp_path):
    """Ids of another one's tokenizer would mean nothing to the model."""
    command = ["eval-recall", "control:unigram", tiny_model("gpt_neox", vocab_size=8192), "--tasks", "fda", "--data", rows]
    done = run(*command, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "no tokenizer beside it, and its vocabulary of 8,192 entries is not that of recallkit-4k" in done.stderr
    assert not list((tmp_path / "out").rglob("*.parquet"))


def test_a_failure_later_on_keeps_what_is_whole(run, home, rows, tmp_path):
    """What the function of a user's model does shows when it is called."""
    (tmp_path / "fails.py").write_text("def load(request):\n    raise ValueError('no weights')\n")
    command = ["eval-recall", "control:unigram", f"{tmp_path / 'fails.py'}:load", "--tasks", "fda", "--data", rows]
    done = run(*command, "-o", tmp_path / "out")
    assert done.returncode == 1
    assert "raised ValueError: no weights" in done.stderr
    assert "1 of 2 tables are complete" in done.stderr
    assert len(documents(tmp_path / "out", "control:unigram")) == 12


def test_one_model_is_in_memory_at_a_time(home, rows, tmp_path, monkeypatch):
    """Several large models would not fit beside each other."""
    import gc
    import weakref

    from recallkit.models import loading

    load, loaded = loading.load_model, []

    def watched(request):
        gc.collect()
        assert not [model for model in loaded if model() is not None], "the model before is still there"
        model = load(request)
        loaded.append(weakref.ref(model))
        return model

    monkeypatch.setattr(loading, "load_model", watched)
    (tmp_path / "squad.jsonl").write_bytes(rows.read_bytes())
    evaluate_recall(["control:unigram", "control:bigram"], ["fda", "squad"], tmp_path / "out", RecallOptions(data=tmp_path))
    assert len(loaded) == 2, "once for all tasks"


def test_nothing_but_json_on_stdout(run, home, tmp_path):
    """lm-eval prints a line to stdout where a metric is bootstrapped."""
    (tmp_path / "rows.jsonl").write_text(
        "".join(json.dumps({"text": text, "end": end}) + "\n" for text, end in [("a", "b"), ("of", "the")])
    )
    (tmp_path / "task.yaml").write_text(
        f"task: words\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'rows.jsonl'}\ntest_split: test\n"
        "output_type: loglikelihood\ndoc_to_text: '{{text}}'\ndoc_to_target: ' {{end}}'\nmetric_list:\n  - metric: perplexity\n"
    )
    done = run("eval-recall", "--lm-eval-task", tmp_path / "task.yaml", "-o", tmp_path / "out", "--json")
    assert done.returncode == 0, done.stderr
    assert {row["model"] for row in json.loads(done.stdout)["metrics"]} == {"control:recall", "control:unigram"}


def test_tasks_of_lm_eval_run_unchanged(run, home, tmp_path):
    data = [{"question": "the state of", "answer": 1}, {"question": "the state of", "answer": 0}, {"question": "of the", "answer": 1}]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    (tmp_path / "task.yaml").write_text(
        f"task: parity\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path / 'rows.jsonl'}\n"
        "test_split: test\noutput_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\n"
        "doc_to_choice: ['xylophone', 'the']\nmetric_list:\n  - metric: acc\nmetadata:\n  version: 3.0\n"
    )
    command = ["eval-recall", "control:bigram", "--lm-eval-task", tmp_path / "task.yaml", "-o", tmp_path / "out"]
    done = run(*command, "--json")
    assert done.returncode == 0, done.stderr
    [row] = json.loads(done.stdout)["metrics"]
    assert (row["task"], row["version"], row["metric"], row["num_documents"]) == ("parity", "3.0", "acc", 3)
    assert row["value"] == pytest.approx(2 / 3), "a bigram model prefers `the`"
    [written] = (tmp_path / "out" / "lm-eval" / "control__bigram").glob("results_*.json")
    assert json.loads(written.read_text())["results"]["parity"]["acc,none"] == row["value"]
    assert "parity v3.0" in run(*command).stdout
    assert len(list((tmp_path / "out" / "lm-eval" / "control__bigram").glob("results_*.json"))) == 1, "found again"
    (tmp_path / "rows.jsonl").write_text(json.dumps(data[0]) + "\n")
    assert "differs in requests" in run(*command).stderr, "other data, other metrics"
    [with_example] = json.loads(run(*command, "--shots", 1, "--json").stdout)["metrics"]
    assert (with_example["shots"], row["shots"]) == (1, 0)
    assert len(list((tmp_path / "out" / "metrics").rglob("*.parquet"))) == 2
    assert "--shots: is for tasks of lm-eval" in run("eval-recall", "control:bigram", "--shots", 1, "-o", tmp_path / "out").stderr
    refused = run("eval-recall", "control:copy", "--lm-eval-task", tmp_path / "task.yaml", "-o", tmp_path / "out")
    assert "it copies text and has no likelihoods" in refused.stderr


def test_the_tasks_are_listed(run):
    listed = run("tasks").stdout
    assert all(
        name in listed
        for name in ("swde", "fda", "squad", "nq_2048", "jrt", "metadata", "not comparable with published figures", "hellaswag")
    )
