"""What the user is told and never obeyed by a terminal: whose code runs, and control characters of
corpora as characters.

Errors, tables and the token view are in tests/storage/test_artifacts.py, test_cli.py and
test_tokens_command.py.
"""

from __future__ import annotations

import json
import re

import pytest

from recallkit import cli
from recallkit.models.loading import warn_remote_code
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.conftest import made_up_texts, write_jsonl

CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
HOSTILE = "\x1b]0;title\x07\x1b[2J\x9b31m\u202ereversed"


def told(path, **options) -> list[str]:
    notes: list[str] = []
    warn_remote_code(ModelPlan(ModelSpec(str(path)), 64, **options), notes.append)
    return notes


def test_whose_code_runs_is_told_where_it_may(tmp_path):
    auto_map = {
        "AutoConfig": "configuration_x.XConfig",
        "AutoModelForCausalLM": "someone/else--modeling_x.XModel",
        "AutoTokenizer": "t.T",
    }
    (tmp_path / "config.json").write_text(json.dumps({"auto_map": auto_map}))
    [line] = told(tmp_path, trust_remote_code=True)
    assert (
        "runs Python code that comes with this checkpoint (configuration_x.py, "
        "someone/else--modeling_x.py)"
    ) in line
    assert told(tmp_path) == []


@pytest.mark.parametrize(
    "config", ["{}", "[]", "{", '{"auto_map": 3}', '{"auto_map": {"AutoConfig": ["a", null]}}']
)
def test_nothing_is_told_where_there_is_no_code(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    assert told(tmp_path, trust_remote_code=True) == []
    for name in ("control:bigram", "zoo:mamba"):
        assert told(name, trust_remote_code=True) == []


@pytest.fixture(scope="module")
def slices(run, home, tmp_path_factory):
    """Text, sources, ids and file names full of what terminals obey."""
    folder = tmp_path_factory.mktemp("hostile")
    texts = [f"{HOSTILE} {text}" for text in made_up_texts(6, 60)]
    shard = write_jsonl(folder / "a.jsonl", texts, f"books{HOSTILE}")
    counted = run("count", shard, "-o", folder / "counts.duckdb")
    sliced = run(
        "slice",
        shard,
        "--counts",
        folder / "counts.duckdb",
        "--max-count",
        5,
        "--seq-len",
        32,
        "-o",
        folder / "slices",
    )
    assert (counted.returncode, sliced.returncode) == (0, 0), counted.stderr + sliced.stderr
    for done in (counted, sliced):
        assert not CONTROL.search(done.stdout + done.stderr)
    return folder / "slices"


@pytest.mark.parametrize(
    "command",
    [
        ["score", "control:bigram", "--slices"],
        ["gap", "control:recall", "control:bigram", "--slices"],
        ["profile", "--slices"],
        ["tokens"],
        ["gap", "control:recall", "control:bigram", "--json", "--slices"],
    ],
    ids=" ".join,
)
def test_no_command_prints_what_a_terminal_obeys(slices, command, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        cli.run([*command, str(slices)])
    out, err = capfd.readouterr()
    assert ended.value.code == 0, err
    assert out
    assert not CONTROL.search(out), sorted(set(CONTROL.findall(out)))
    assert not CONTROL.search(err)


def test_nor_does_a_mistake(run, tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({HOSTILE: "x", "meta": HOSTILE}) + "\n")
    done = run("count", bad, "-o", tmp_path / "c.duckdb")
    assert done.returncode == 1
    assert not CONTROL.search(done.stderr)
