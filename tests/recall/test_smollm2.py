"""Recall of a real attention model on real documents, beside a scorer that shares no code: transformers' own generation."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

from recallkit.recall.run import RecallOptions, documents_path, evaluate_recall

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

TASKS = {"fda": "fda", "swde": "swde_books", "squad": "squad_qa"}
LIMIT = 6


@pytest.fixture(scope="module")
def asked(test_data) -> dict[str, list[dict[str, str]]]:
    """The first rows of each task."""
    return {
        task: [json.loads(line) for line in (test_data / "evals" / f"{file}.jsonl").read_text().splitlines()[:LIMIT]]
        for task, file in TASKS.items()
    }


@pytest.fixture(scope="module")
def out(home, smollm2, test_data, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("evals")
    evaluate_recall([str(smollm2)], list(TASKS), folder, RecallOptions(data=test_data / "evals", limit=LIMIT))
    return folder


@pytest.fixture(scope="module")
def theirs(smollm2):
    """transformers' own model and tokenizer."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where = {"pretrained_model_name_or_path": str(smollm2.parent), "gguf_file": smollm2.name}
    return AutoModelForCausalLM.from_pretrained(**where).eval(), AutoTokenizer.from_pretrained(**where)


@pytest.mark.parametrize("task", TASKS)
def test_accuracy_is_that_of_an_independent_scorer(out, asked, theirs, smollm2, task):
    import torch

    model, tokenizer = theirs
    table = pl.read_parquet(documents_path(out, str(smollm2), f"{task}-v1"))
    for row, document in zip(asked[task], table.to_dicts(), strict=True):
        prompt = tokenizer(row["text"].strip(), return_tensors="pt")
        with torch.no_grad():
            ids = model.generate(**prompt, max_new_tokens=48, do_sample=False)[0, prompt["input_ids"].shape[1] :]
            text = tokenizer.decode(ids, skip_special_tokens=True).split("\n")[0]
            whole = tokenizer(row["text"].strip() + " " + row["value"].strip(), return_tensors="pt")["input_ids"]
            logits = model(whole).logits[0].double().log_softmax(-1)
        assert document["generation"] == text
        assert document["contains"] == (row["value"].strip().lower() in text.lower())
        assert document["prompt_tokens"] == prompt["input_ids"].shape[1]
        start = prompt["input_ids"].shape[1]
        if torch.equal(whole[:, :start], prompt["input_ids"]):
            nll = -logits[torch.arange(start - 1, whole.shape[1] - 1), whole[0, start:]].mean()
            assert document["answer_nll"] == pytest.approx(float(nll), abs=1e-3)
