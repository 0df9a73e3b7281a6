"""lm-eval run for real: its own tasks on local data, its files, and what it raises."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from lm_eval.api.model import LM

from recallkit.errors import UserError
from recallkit.recall import lm_eval_run
from recallkit.recall.copying import copy_answer


class Recorder(LM):
    """What lm-eval needs of a model, answering by copying."""

    def generate_until(self, requests, disable_tqdm=False):
        return [copy_answer(request.args[0]) for request in requests]

    def loglikelihood(self, requests, disable_tqdm=False):
        return [(-float(len(request.args[1])), False) for request in requests]

    def loglikelihood_rolling(self, requests, disable_tqdm=False):
        raise NotImplementedError


CHOICE = (
    "output_type: multiple_choice\ndoc_to_text: '{{question}}'\ndoc_to_target: answer\n"
    "doc_to_choice: ['odd', 'a longer wrong word']\nmetric_list:\n  - metric: acc\n"
)
COLOURS = (
    "output_type: generate_until\ndoc_to_text: '{{prompt}}'\ndoc_to_target: value\n"
    "generation_kwargs:\n  until: ['\\n']\nmetric_list:\n  - metric: exact_match\n"
    "metadata:\n  version: 2.0\n"
)


def yaml_task(folder, rows, config=CHOICE, name="parity"):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(
        (
            f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: "
            f"{folder / 'rows.jsonl'}\ntest_split: test\n{config}"
        ),
    )
    return folder / "task.yaml"


def test_files_of_results_are_lm_evals(tmp_path, monkeypatch):
    from lm_eval.utils import (
        get_file_task_name,
        get_results_filenames,
        get_sample_results_filenames,
    )

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    rows = [{"prompt": f"Name: n{i}\nName:", "value": f": n{i // 2}"} for i in range(4)]
    path = yaml_task(tmp_path, rows, COLOURS, "colours")
    task = lm_eval_run.load_task(str(path))
    results = lm_eval_run.run_tasks(Recorder(), task, model="../some/model")
    assert results["versions"] == {"colours": 2.0}
    out = tmp_path / "out"
    paths = lm_eval_run.write_results(dict(results), out, "../some/model")
    files = [str(path) for path in paths]
    [summary], [samples] = get_results_filenames(files), get_sample_results_filenames(files)
    assert json.loads(Path(summary).read_text())["config"]["model"] == "../some/model"
    assert get_file_task_name(samples.rpartition("/")[2]) == "colours"
    lines = [json.loads(line) for line in Path(samples).read_text().splitlines()]
    assert [line["filtered_resps"][0] for line in lines] == [
        copy_answer(row["prompt"]) for row in rows
    ]
    for model in ("..", ".", "a/../../b", "x" * 300):
        for path in lm_eval_run.write_results({**results, "samples": {}}, out, model):
            assert path.parent.parent == out, "any name stays in the folder"
    assert not list(out.rglob(".*")), "no temporary folder is left"


def without_other_tasks(folder, monkeypatch):
    """lm-eval reads the thousands of files beside its manager, in six to ten seconds; here beside
    it are those of one task."""
    from lm_eval.tasks import manager

    shutil.copytree(Path(manager.__file__).parent / "lambada", folder / "beside" / "lambada")
    monkeypatch.setattr(manager, "__file__", str(folder / "beside" / "manager.py"))


def test_examples_are_those_of_lm_evals_own_command(tmp_path, monkeypatch):
    from lm_eval import simple_evaluate

    without_other_tasks(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    path = yaml_task(
        tmp_path,
        [{"question": f"{number}?", "answer": number % 2} for number in range(8)],
    )
    for shots in (0, 3):
        ours = lm_eval_run.run_tasks(
            Recorder(),
            lm_eval_run.load_task(str(path)),
            model="m",
            shots=shots,
        )
        theirs = simple_evaluate(
            Recorder(),
            tasks=[str(path)],
            num_fewshot=shots,
            bootstrap_iters=0,
        )
        prompts = [sample["arguments"] for sample in ours["samples"]["parity"]]
        expected = [sample["arguments"] for sample in theirs["samples"]["parity"]]
        assert prompts == expected
        assert all(prompt.count("?") == shots + 1 for (prompt, _), *_ in prompts)
        assert ours["n-shot"]["parity"] == shots


def test_record_runs_without_a_module_that_transformers_no_longer_has(tmp_path, monkeypatch):
    from lm_eval.tasks import manager

    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = shutil.copytree(
        Path(manager.__file__).parent / "super_glue" / "record",
        tmp_path / "record",
    )
    passage = {
        "passage": "Ann met Bob.\n@highlight\nA walk",
        "query": "@placeholder walked.",
        "entities": ["Ann Lee", "Bo"],
    }
    rows = [passage | {"answers": ["Bo"]}, passage | {"answers": ["The Lee"]}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    config = (folder / "default.yaml").read_text()
    data = (
        "dataset_path: json\ndataset_kwargs:\n  data_files:\n    validation: "
        f"{folder / 'rows.jsonl'}"
    )
    (folder / "default.yaml").write_text(
        re.sub(
            r"dataset_path: \S+\ndataset_name: \S+|(training_split: \S+)",
            lambda m: "" if m[1] else data,
            config,
        ),
    )
    results = lm_eval_run.run_tasks(
        Recorder(),
        lm_eval_run.load_task(str(folder / "default.yaml")),
        model="m",
    )
    # The shorter choice is the likelier: Bo, which is right once, and has no word of the other
    # answer.
    assert (results["results"]["record"]["f1,none"], results["results"]["record"]["em,none"]) == (
        0.5,
        0.5,
    )


def test_what_lm_eval_does_not_know_is_one_line(tmp_path, monkeypatch):
    without_other_tasks(tmp_path, monkeypatch)
    with pytest.raises(UserError, match="lm-eval has no such task; see `lm-eval ls tasks`"):
        lm_eval_run.load_task("no_such_task_at_all")
    with pytest.raises(UserError, match=r"lm-eval has no such task; did you mean lambada_openai\?"):
        lm_eval_run.load_task("lambada_opena")
    (tmp_path / "bad.yaml").write_text("task: bad\ndataset_path: json\noutput_type: nonsense\n")
    with pytest.raises(UserError, match="cannot load it"):
        lm_eval_run.load_task(str(tmp_path / "bad.yaml"))
