"""Commands that share their work: the same bytes by one process, by two, by the jobs of an array,
after a kill."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from recallkit.recall.answering import AnsweringJob
from recallkit.scoring import plan as planning
from recallkit.scoring import scores
from tests.conftest import made_up_texts
from tests.faults.conftest import made_of


@pytest.fixture
def command(small_slices, tmp_path, monkeypatch):
    """A command of a control model that reads and writes in a folder of its own, in parts of two
    sequences or prompts."""
    monkeypatch.setattr(planning, "SEQUENCES_PER_PART", 2)
    monkeypatch.setattr(scores, "SEQUENCES_PER_ROW_GROUP", 16)
    texts = made_up_texts(12, 80, seed=7)
    rows = [
        {"doc_id": str(i), "key": "of", "value": "the", "text": f"{text} of:"}
        for i, text in enumerate(texts)
    ]
    (tmp_path / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))

    def make(name: str, folder: Path) -> list[object]:
        if not folder.exists():
            shutil.copytree(
                small_slices,
                folder / "slices",
                ignore=shutil.ignore_patterns("scores", "gap", "intervene"),
            )
        model, sliced = "control:recall", ["--slices", folder / "slices"]
        asked = {
            "score": [model, *sliced],
            "intervene": [model, *sliced, "--samples", 6, "-o", folder / "asked"],
            "eval-recall": [
                model,
                "--data",
                tmp_path / "fda.jsonl",
                "--batch-size",
                2,
                "-o",
                folder / "evals",
            ],
        }
        return [name, *asked[name]]

    return make


def results(folder: Path) -> dict[str, object]:
    """All results in a folder but lm-eval's files, which hold the time of day; nothing is left
    over."""
    assert not list(folder.rglob(".*"))
    return {name: content for name, content in made_of(folder).items() if "lm-eval/" not in name}


@pytest.mark.parametrize("name", ["intervene", "eval-recall"])
def test_two_workers_and_the_jobs_of_an_array_write_the_bytes_of_one_process(
    run, command, warm_workers, tmp_path, name
):
    ways = {"one": [[]], "two": [["--workers", 2]]}
    if name == "intervene":
        ways["shares"] = [["--share", "2/2"], ["--share", "1/2"], []]
    contents = {}
    for way, runs in ways.items():
        for options in runs:
            done = run(*command(name, tmp_path / way), *options)
            assert done.returncode == 0, done.stderr
            if "--share" in options:
                is_last = options[1] == "1/2"
                lines = done.stdout.splitlines()
                assert len(lines) == 2, done.stdout
                for line in lines:
                    number, total, rest = re.search(
                        r": ([\d,]+) of ([\d,]+) parts are done, (.+)", line
                    ).groups()
                    assert int(number) == int(total) if is_last else 0 < int(number) < int(total)
                    assert rest.startswith("run it without --share" if is_last else "other shares")
                assert not list((tmp_path / way).rglob("asked/*.parquet")), "nothing is joined"
        contents[way] = results(tmp_path / way)
    assert all(content == contents["one"] for content in contents.values())
    if name == "intervene":
        assert run(*command(name, tmp_path / "one"), "--share", "1/3").stdout.endswith(": joined\n")


@pytest.mark.parametrize("given", [["--force"], ["--engine", "ray"], ["--log-to", "trackio"]])
def test_a_share_cannot_do_what_needs_all_parts(run, command, tmp_path, given):
    for name in ("score", "intervene"):
        done = run(*command(name, tmp_path / "made"), "--share", "1/2", *given)
        assert done.returncode == 2
        assert f"--share and {given[0]}: cannot be combined" in done.stderr


def test_a_model_that_is_replaced_meanwhile_is_noticed_by_a_worker(
    run, command, warm_workers, tiny_model, tmp_path, monkeypatch
):
    folder = tmp_path / "model"
    shutil.copytree(tiny_model("gpt_neox"), folder)
    amount_done = AnsweringJob.amount_done

    def replaced(job: AnsweringJob) -> int:
        (folder / "config.json").write_text((folder / "config.json").read_text() + "\n")
        return amount_done(job)

    monkeypatch.setattr(AnsweringJob, "amount_done", replaced)
    name, _, *options = command("eval-recall", tmp_path / "made")
    done = run(name, folder, *options, "--workers", 2)
    assert done.returncode == 1
    assert "its files changed while it was scored" in done.stderr
