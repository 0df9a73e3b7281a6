"""Commands that share their work: the same bytes by one process, by two, by the jobs of an array, after a kill."""

from __future__ import annotations

import json
import re
import shutil
import time
from pathlib import Path

import pytest

from recallkit.recall.answering import Answerer, AnsweringJob
from recallkit.scoring import scores
from tests.conftest import made_up_texts
from tests.faults.conftest import commit_often, made_of

NAMES = ("score", "intervene", "eval-recall")


@pytest.fixture
def command(small_slices, tmp_path, monkeypatch):
    """A command of a control model that reads and writes in a folder of its own, in parts of two sequences or prompts."""
    monkeypatch.setattr(scores, "SEQUENCES_PER_PART", 2)
    monkeypatch.setattr(scores, "SEQUENCES_PER_ROW_GROUP", 16)
    texts = made_up_texts(12, 80, seed=7)
    rows = [{"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"} for i, text in enumerate(texts)]
    (tmp_path / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name: str, folder: Path) -> list[object]:
        if not folder.exists():
            shutil.copytree(small_slices, folder / "slices", ignore=shutil.ignore_patterns("scores", "gap", "intervene"))
        model, sliced = "control:recall", ["--slices", folder / "slices"]
        asked = {
            "score": [model, *sliced],
            "intervene": [model, *sliced, "--samples", 6, "-o", folder / "asked"],
            "eval-recall": [model, "--data", tmp_path / "fda.jsonl", "--batch-size", 2, "-o", folder / "evals"],
        }
        return [name, *asked[name]]

    return make


def results(folder: Path) -> dict[str, object]:
    """All results in a folder but lm-eval's files, which hold the time of day; nothing is left over."""
    assert not list(folder.rglob(".*"))
    return {name: content for name, content in made_of(folder).items() if "lm-eval/" not in name}


@pytest.mark.parametrize("name", ["intervene", "eval-recall"])
def test_two_workers_and_the_jobs_of_an_array_write_the_bytes_of_one_process(run, command, warm_workers, tmp_path, name):
    made, shares = {}, [["--share", f"{place}/2"] for place in (2, 1)]
    for way, runs in {"one": [[]], "two": [["--workers", 2]], "shares": [*shares, []]}.items():
        for options in runs:
            done = run(*command(name, tmp_path / way), *options)
            assert done.returncode == 0, done.stderr
            if "--share" in options:
                told = [re.search(r": ([\d,]+) of ([\d,]+) parts are done, (.+)", line) for line in done.stdout.splitlines()]
                assert len(told) == (2 if name == "intervene" else 1), done.stdout
                there, whole = zip(*((int(line[1]), int(line[2])) for line in told), strict=True)
                last = options[1] == "1/2"
                assert all(n == of if last else 0 < n < of for n, of in zip(there, whole, strict=True))
                assert all(line[3].startswith("run it without --share" if last else "other shares") for line in told)
                assert not list((tmp_path / way).rglob("asked/*.parquet")), "nothing is joined"
        made[way] = results(tmp_path / way)
    assert made["one"] == made["two"] == made["shares"]
    assert run(*command(name, tmp_path / "one"), "--share", "1/3").stdout.endswith(": joined\n")


@pytest.mark.parametrize("name", [pytest.param("intervene", marks=pytest.mark.ci), pytest.param("eval-recall", marks=pytest.mark.slow)])
def test_what_two_workers_had_done_when_it_was_killed_is_kept(run, start, command, tmp_path, name):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert run(*command(name, whole)).returncode == 0
    process = start(*command(name, cut), "--workers", 2, prepared=commit_often)
    begun = time.monotonic()
    while not list(cut.rglob(".*.partial/part-*[0-9]")) and process.exitcode is None and time.monotonic() - begun < 120:
        time.sleep(0.05)
    process.kill()
    process.join()
    parts = [path for path in cut.rglob(".*.partial/part-*") if not path.name.startswith(".")]
    assert parts, process.err.read_text()
    again = run(*command(name, cut))
    assert re.search(r"resuming after [\d,]+ (prompts|tokens) of an interrupted run", again.stderr), again.stderr
    assert results(cut) == results(whole)


def test_each_batch_is_answered_once_by_whoever_has_its_turn(run, command, tmp_path, monkeypatch):
    """No share does what another one did."""
    answered, answer = [], Answerer.answer
    monkeypatch.setattr(Answerer, "answer", lambda self, questions: answered.append(len(questions)) or answer(self, questions))
    for options, so_far in ((["--share", "2/2"], 3), (["--share", "1/2"], 6), ([], 6)):
        assert run(*command("eval-recall", tmp_path / "shares"), *options).returncode == 0
        assert answered == [2] * so_far


def test_a_task_of_lm_evals_own_is_shared_too(run, command, tmp_path):
    """Its requests are of two types, a batch of each at a time."""
    data = [{"question": "the state of", "answer": i % 2} for i in range(9)]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in data))
    source = f"dataset_path: json\ndataset_kwargs:\n  data_files:\n    test: {tmp_path}/t.jsonl\ntest_split: test\n"
    choice = "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\ndoc_to_choice: ['xylophone', 'the']\n"
    (tmp_path / "t.yaml").write_text(f"task: t\n{source}{choice}metric_list:\n  - metric: acc\n")
    found = []
    for way, runs in {"one": [[]], "shares": [["--share", "1/2"], ["--share", "2/2"], []]}.items():
        name, model, *_ = command("eval-recall", tmp_path / way)
        for options in runs:
            line = [name, model, "--batch-size", 4, "--lm-eval-task", tmp_path / "t.yaml", "-o", tmp_path / way / "evals"]
            done = run(*line, *options, "--json")
            assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout)["metrics"])
    assert found[0] == found[1]
    assert found[0]


@pytest.mark.parametrize("given", [["--force"], ["--engine", "ray"], ["--log-to", "trackio"]])
def test_a_share_cannot_do_what_needs_all_parts(run, command, tmp_path, given):
    for name in NAMES:
        done = run(*command(name, tmp_path / "made"), "--share", "1/2", *given)
        assert done.returncode == 2
        assert "--share: goes with none of --force, --engine ray and --log-to" in done.stderr


def test_a_model_that_is_replaced_meanwhile_is_noticed_by_a_worker(run, command, warm_workers, tiny_model, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("gpt_neox"), folder)
    kept = AnsweringJob.kept

    def replaced(job: AnsweringJob) -> int:
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
        return kept(job)

    monkeypatch.setattr(AnsweringJob, "kept", replaced)
    name, _, *options = command("eval-recall", tmp_path / "made")
    done = run(name, folder, *options, "--workers", 2)
    assert done.returncode == 1
    assert "its files changed while it was scored" in done.stderr
