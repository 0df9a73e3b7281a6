"""Every command with `--log-to`, run for real: its headline numbers, tables, manifest and figures are in TensorBoard's file."""

import json

import pytest

from recallkit import cli
from tests.conftest import ROOT, made_up_texts, write_jsonl

pytest.importorskip("tensorboard", reason="needs TensorBoard: pip install tensorboard")
pytestmark = pytest.mark.slow

MQAR = "--seq-len 32 --pairs 4 --samples 4"
TRAINED = "--mixers attention,mamba --widths 16 --learning-rates 0.01 --seq-len 32 --pairs 4 --test-seq-len 32 --test-pairs 4 --steps 4"
TRAINED += " --examples 16 --test-examples 8 --batch 8 --layers 2 --vocab 64"
COMMANDS = {
    "slice": ("slice TEXT --counts COUNTS -o OUT", "summary/ALL/ar_hit_share", 0),
    "profile": ("profile --slices SLICES -o OUT", "profile/ALL/repeated_share", 1),
    "score": ("score control:bigram --slices SLICES", "scores/control:bigram/ppl", 0),
    "gap": ("gap control:bigram control:recall --slices SLICES -o OUT --causal", "intervene/control:recall/ar_hit/recall", 8),
    "table": (f"published {ROOT / 'examples/02_zoology_70m.csv'}", "published/", 0),
    "intervene": ("intervene control:bigram control:recall --slices SLICES -o OUT", "intervene/control:bigram/ar_hit/nll", 1),
    "track": ("track control:recall run-1=control:unigram run-2=control:bigram --slices SLICES -o OUT", "track/run-2/ar_nll", 1),
    "ablate": ("ablate zoo:hybrid --slices SLICES -o OUT", "ablation/zoo:hybrid/", 1),
    "eval-recall": ("eval-recall control:recall control:bigram --limit 4 -o OUT", "recall/control:recall/metadata/accuracy", 1),
    "mqar": (f"mqar zoo:attention zoo:mamba {MQAR} -o OUT", "mqar/zoo:mamba/4/accuracy", 1),
    "train-mqar": (f"train-mqar {TRAINED} -o OUT", "tradeoff/", 1),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_logs_its_result(home, small_slices, tmp_path, capsys, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    line, number, fewest_figures = COMMANDS[name]
    text = write_jsonl(tmp_path / "text.jsonl", made_up_texts(10, 60, seed=4))
    places = {"SLICES": small_slices, "COUNTS": small_slices.parent / "counts.duckdb", "OUT": tmp_path / "out", "TEXT": text}
    words = [str(places.get(word, word)) for word in line.split()]
    with pytest.raises(SystemExit) as stopped:
        cli.run([*words, "--log-to", f"tensorboard:{tmp_path / 'runs'}"])
    assert not stopped.value.code, capsys.readouterr().err
    [run] = (tmp_path / "runs").iterdir()
    events = EventAccumulator(str(run))
    events.Reload()
    tags = events.Tags()
    assert any(tag.startswith(number) for tag in tags["scalars"]), tags["scalars"]
    assert len(tags["images"]) >= fewest_figures
    texts = {tag.removesuffix("/text_summary"): events.Tensors(tag)[0].tensor_proto.string_val[0].decode() for tag in tags["tensors"]}
    [config] = [json.loads(text.strip("`").removeprefix("json")) for tag, text in texts.items() if tag.startswith("config/")]
    assert config["command"] == words[0]
    assert "log_to" not in config["options"]
    assert config["manifest"] or name == "table"
    assert any(tag.startswith("tables/") and "| --:" in text for tag, text in texts.items())
