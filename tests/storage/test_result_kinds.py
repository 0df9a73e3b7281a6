"""Manifests and journal keys of every kind of result, exactly as they have been: by them work done before is found again.

`data/results.json` was made with the code of before there was one object for all results. Where this test fails, finished work of
users would be refused, or a field that their programs read be gone.
"""

from __future__ import annotations

import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from recallkit import __version__, counting
from recallkit.ablation.run import ablate
from recallkit.attribution.run import gap
from recallkit.counting.table import read_meta
from recallkit.mqar.run import evaluate_mqar
from recallkit.options import MqarOptions, TextOptions
from recallkit.profiling.run import profile, profile_slices
from recallkit.recall.run import RecallOptions, evaluate_recall
from recallkit.recall.stock_tasks import plan_stock
from recallkit.scoring.run import ScoringOptions
from recallkit.slicing import RareCount, slice_text
from recallkit.storage import artifacts
from recallkit.storage.journal import Journal
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl
from tests.indexes_made import write_tokengrams

KEPT = Path(__file__).parent / "data" / "results.json"
MODELS = ["control:recall", "control:bigram"]
VARYING = {"lm_eval": version("lm_eval"), "requests": None, "tables": None, "model_digest": None}
"""Fields that other versions of packages change (None: a digest)."""
TASK = """
task: parity
dataset_path: json
dataset_kwargs:
  data_files:
    test: {rows}
test_split: test
output_type: multiple_choice
doc_to_text: '{{{{question}}}}'
doc_to_target: answer
doc_to_choice: ['xylophone', 'the']
metric_list:
  - metric: acc
"""


def plain(value: Any, folder: Path, name: str = "") -> Any:
    """A manifest without what a run, a machine or a version decides."""
    if name == "timings":
        return sorted(value["stages"])
    if name in VARYING and isinstance(value, str):
        assert value == VARYING[name] if VARYING[name] else re.fullmatch("[0-9a-f]{32,64}", value)
        return f"<{name}>"
    if isinstance(value, dict):
        return {key.replace(str(folder), "<folder>"): plain(item, folder, key) for key, item in value.items()}
    if isinstance(value, list):
        return [plain(item, folder) for item in value]
    return value.replace(str(folder), "<folder>").replace(__version__, "<version>") if isinstance(value, str) else value


def make_all(folder: Path) -> None:
    """A small result of each kind."""
    texts = made_up_texts(12, 80, seed=3)
    text = str(write_jsonl(folder / "text.jsonl", texts))
    train, valid = TextOptions([text], "train"), TextOptions([text], "validation", limit_tokens=400)
    counting.count(train, folder / "counts.duckdb")
    (folder / "foreign.csv").write_text("first,second,count\n1,2,3\n2,3,4\n")
    given: dict[str, Any] = {"num_tokens": None, "boundary": "pack", "force": False}
    counting.import_counts(folder / "foreign.csv", folder / "foreign.duckdb", tokenizer=None, **given)
    tokenizer = load_tokenizer(None)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    ids = [i for text in texts for i in (*tokenizer.encode([text])[0].tolist(), tokenizer.end_token_id)]
    index = write_tokengrams(folder / "index.bin", ids)
    counting.import_counts(index, folder / "index.duckdb", tokenizer=str(folder / "tokenizer.json"), **given)
    slices = folder / "slices"
    rare = RareCount(1250)  # the default of before there was a rule
    slice_text(valid, slices, counts=folder / "counts.duckdb", rare=rare, seq_len=64)
    slice_text(valid, folder / "bare", counts=None, seq_len=64)
    gap(MODELS[0], MODELS[1:], slices, options=ScoringOptions(counts=folder / "counts.duckdb"))
    ablate("zoo:hybrid", slices, options=ScoringOptions(device="cpu", batch_tokens=512), asked=["2"])
    profile(valid, folder / "profile", counts=folder / "counts.duckdb", rare=rare, seq_len=64)
    profile_slices(slices, folder / "profile of slices")
    documents = [
        {"doc_id": f"d{i}", "key": "Name", "value": f" v{i}", "text": f"Name: v{i}\n{text}\nName:"} for i, text in enumerate(texts)
    ]
    (folder / "fda.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    evaluate_recall(["control:copy", MODELS[0]], ["fda"], folder / "evals", RecallOptions(data=folder / "fda.jsonl", limit=4))
    rows = [{"question": "the state of", "answer": 1}, {"question": "of the", "answer": 0}]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "task.yaml").write_text(TASK.format(rows=folder / "rows.jsonl"))
    plan_stock(["control:bigram"], [str(folder / "task.yaml")], folder / "evals").run()
    evaluate_mqar(MODELS, [2, 4], folder / "mqar", MqarOptions(seq_len=32, samples=4))


def found_in(folder: Path) -> dict[str, Any]:
    """Every manifest in a folder by the name of its file, which may hold a digest of paths."""
    read = {".parquet": artifacts.read_manifest, ".duckdb": read_meta, ".json": artifacts.read_json}
    files = [path for path in folder.rglob("*") if path.suffix in read and "lm-eval" not in path.parts and path.name != "tokenizer.json"]
    return {str(path.relative_to(folder)): plain(read[path.suffix](path), folder) for path in sorted(files)}


@pytest.fixture(scope="module")
def made(home, tmp_path_factory) -> dict[str, Any]:
    folder, keys = tmp_path_factory.mktemp("results"), {}

    def keep_key(journal: Journal) -> None:
        name = str(journal.target.relative_to(folder)) if journal.target.is_relative_to(folder) else journal.target.name
        keys[re.sub(r"-[0-9a-f]{12}-", "-MARK-", name)] = plain(json.loads(json.dumps(journal.key)), folder)
        finish(journal)

    finish = Journal.finish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Journal, "finish", keep_key)
        make_all(folder)
    slug = artifacts.file_slug(str(folder / "task.yaml"))
    text = json.dumps({"keys": keys, "manifests": found_in(folder)}, indent=1, sort_keys=True).replace(slug, "<slug>")
    return json.loads(text)


def with_no_more(found: Any, kept: Any) -> Any:
    """The fields of a manifest, and of the slices and counts in it, that `kept` has: a new field is no harm, but for those of `options`."""
    if not isinstance(found, dict) or not isinstance(kept, dict):
        return found
    common = {name: found[name] for name in kept if name in found}
    return {name: with_no_more(value, kept[name]) if name in ("slices", "counts") else value for name, value in common.items()}


@pytest.mark.parametrize("what", ["keys", "manifests"])
def test_manifests_and_keys_are_what_they_were(made, what):
    kept = json.loads(KEPT.read_text(encoding="utf-8"))[what]
    assert set(kept) <= set(made[what]), "a new table is no harm"
    for name in kept:
        found = made[what][name]
        assert (found if what == "keys" else with_no_more(found, kept[name])) == kept[name], name
