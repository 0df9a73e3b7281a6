"""The workflow of docs/automation.md: GitHub's syntax where it can be checked here, and its
commands, run in its order on small models."""

import os
import re
import shlex
import shutil
import subprocess

import pytest
import yaml

from tests.conftest import ROOT, made_up_texts, write_jsonl
from tests.known_truth import PATH

PAGE = (ROOT / "docs/automation.md").read_text(encoding="utf-8")
[WORKFLOW] = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def steps():
    workflow = yaml.load(WORKFLOW, Loader=yaml.BaseLoader)  # BaseLoader leaves `on` a word
    assert set(workflow["on"]) == {"pull_request", "workflow_dispatch"}
    [job] = workflow["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest"
    return job["env"], job["steps"]


def test_every_step_runs_something_and_actions_have_versions():
    env, listed = steps()
    assert [sorted({"run", "uses"} & set(step)) for step in listed].count(["run"]) == 5
    for step in listed:
        assert len({"run", "uses"} & set(step)) == 1
        assert "uses" not in step or re.fullmatch(r"actions/[\w-]+@v\d+", step["uses"])
    assert {
        name for step in listed for name in re.findall(r"\"\$([A-Z]+)\"", step.get("run", ""))
    } == set(env)


@pytest.mark.parametrize(
    ("candidate", "status"),
    [
        ("worse", 1),
        pytest.param("bigram", 0, marks=pytest.mark.slow),
        pytest.param("tiny", 1, marks=pytest.mark.slow),
    ],
)
def test_its_commands_measure_judge_and_show(
    run, few_slices, tiny_model, tmp_path, monkeypatch, candidate, status
):
    path = tiny_model("mamba") if candidate == "tiny" else f"{PATH}:{candidate}"
    models = {
        "REFERENCE": f"reference={PATH}:{'bigram' if status else 'worse'}",
        "CANDIDATE": f"candidate={path}",
    }
    (tmp_path / "eval").mkdir()
    write_jsonl(tmp_path / "eval/valid.jsonl", made_up_texts(10, 100, seed=2))
    shutil.copy(few_slices.parent / "counts.duckdb", tmp_path / "eval")
    shutil.copy(few_slices / "tokenizer.json", tmp_path / "eval")
    monkeypatch.chdir(tmp_path)
    environment = {**os.environ, **models, "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    found = {}
    for step in steps()[1]:
        if "run" not in step or "pip install" in step["run"]:
            continue
        condition = step.get("if", "").replace("!cancelled() && ", "")
        for file in re.findall(r"hashFiles\('(.*?)'\) != ''", condition):
            assert (tmp_path / file).is_file()
        assert condition or not any(found.values()), (
            "a step after the gate needs a condition to run at all"
        )
        if step["run"].startswith("recallkit "):
            words = [
                os.path.expandvars(word) if not models.get(word[1:]) else models[word[1:]]
                for word in shlex.split(step["run"])[1:]
            ]
            done = run(*words)
        else:
            done = subprocess.run(
                ["bash", "-e", "-c", step["run"]],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
        found[step["name"]] = done.returncode
        if step["name"] == "Measure the gap":
            assert ("NLL on ar_hit" in done.stderr.splitlines()[-1]) == bool(status), done.stderr
    assert found == {
        "Label the text": 0,
        "Measure the gap": status,
        "Table on the summary": 0,
        "Page": 0,
    }
    assert "| retained, % |" in (tmp_path / "summary.md").read_text()
    assert "<title>" in (tmp_path / "report.html").read_text()
