"""The example of released checkpoints: small ones of the same layouts under the same hub ids, asked
about local rows, without a network."""

from __future__ import annotations

import json

import polars as pl
import pytest
import torch
from tokenizers import normalizers
from transformers import AutoConfig, AutoModelForCausalLM

import recallkit
from tests.conftest import made_up_texts, write_jsonl
from tests.made_tokenizers import byte_level
from tests.models import test_published as layouts
from tests.models.families import FAMILIES

VOCAB, ROWS = 380, 384
OF_TRANSFORMERS = {
    "EleutherAI/pythia-410m": ("gpt_neox", FAMILIES["gpt_neox"].config),
    "RWKV/rwkv-4-430m-pile": ("rwkv", FAMILIES["rwkv"].config),
}
SHARPNESS = {
    "EleutherAI/pythia-410m": (1.0, "gpt_neox.final_layer_norm"),
    "RWKV/rwkv-4-430m-pile": (0.5, "rwkv.ln_out"),
}
"""How much two models know of the frequencies of tokens, in their last norm and head: shares of
gaps of pure guesses are void."""


@pytest.fixture
def released(load):
    """examples/released.py."""
    return load("released")


@pytest.fixture
def stand_ins(tmp_path, hub, monkeypatch):
    """Models under their hub ids, with the tokenizers that theirs have; a folder of text and of
    rows."""
    monkeypatch.setattr(layouts, "ROWS", ROWS)
    theirs = {
        "hazyresearch/attn-360m": (layouts.ATTENTION, layouts.CHECKPOINTS["attn"][1]()),
        "hazyresearch/based-360m": (layouts.BASED, layouts.CHECKPOINTS["based"][1]()),
    }
    gpt2, neox = byte_level(), byte_level(normalizer=normalizers.NFC())
    ids = torch.tensor([number for encoded in neox.encode_batch(TEXTS) for number in encoded.ids])
    frequency = (torch.bincount(ids, minlength=VOCAB) + 0.1).log()
    for name, (config, weights) in theirs.items():
        folder = tmp_path / name
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config | {"vocab_size": VOCAB}))
        torch.save(
            {f"model.{key}": value for key, value in weights.items()}, folder / "pytorch_model.bin"
        )
        hub(name, folder)
    for name, (family, config) in OF_TRANSFORMERS.items():
        torch.manual_seed(3)
        sizes = {
            "vocab_size": VOCAB,
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
        }
        # fewer than a sequence has
        short = {} if family == "rwkv" else {"max_position_embeddings": 640}
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **{**sizes, **config, **short})
        )
        if name in SHARPNESS:
            with torch.no_grad():
                sharpness, norm = SHARPNESS[name]
                model.get_submodule(norm).bias.fill_(1)
                model.get_output_embeddings().weight.add_(sharpness * frequency[:, None] / 48)
        model.save_pretrained(tmp_path / name)
        neox.save(str(tmp_path / name / "tokenizer.json"))
        hub(name, tmp_path / name)
    for name, tokenizer in {"openai-community/gpt2": gpt2, "EleutherAI/gpt-neox-20b": neox}.items():
        (tmp_path / name).mkdir(parents=True)
        tokenizer.save(str(tmp_path / name / "tokenizer.json"))
        hub(name, tmp_path / name)
    (tmp_path / "rows").mkdir()
    for task in ("swde", "fda", "squad"):
        rows = [
            {"doc_id": str(i), "key": "Name", "value": f" {i}", "text": f"Name: {i}\n{text}\nName:"}
            for i, text in enumerate(TEXTS[:3])
        ]
        (tmp_path / "rows" / f"{task}.jsonl").write_text(
            "".join(json.dumps(row) + "\n" for row in rows)
        )
    write_jsonl(tmp_path / "text.jsonl", TEXTS)
    return tmp_path


TEXTS = made_up_texts(40, 60, seed=4)


def test_models_are_measured_beside_their_printed_figures_and_reused(
    home, released, stand_ins, monkeypatch, capsys
):
    out, text = stand_ins / "out", str(stand_ins / "text.jsonl")
    words = (
        f"--out {out} --data {stand_ins / 'rows'} --text {text} --tokens 1k --train-text {text} "
        "--train-tokens 2k --device cpu --limit 2"
    )
    models = ["hazyresearch/based-360m", "*pythia-410m", "*430m*", "hazyresearch/based-1b-50b"]
    monkeypatch.setattr(
        "sys.argv", ["released.py", *words.split(), "--device", "cpu", "--models", *models]
    )
    with pytest.raises(SystemExit, match=r"not measured in full: 1\.3B, 50B$"):
        released.main()
    printed = capsys.readouterr()
    assert (
        "1.3B, 50B: hazyresearch/attn-1b-50bn: neither here nor in the hub's cache" in printed.err
    )
    assert "hours of reading" in printed.out
    table = pl.read_csv(out / "released.csv")
    assert table.group_by("group", maintain_order=True).agg(pl.col("model").n_unique()).rows() == [
        ("360M, 10B", 2),
        ("Pile, 400M", 2),
    ]
    of_based = table.filter(model="hazyresearch/based-360m")
    figures = {row["figure"]: row for row in of_based.to_dicts()}
    of_print = {
        "ppl all": 8.65,
        "ppl ar": 2.07,
        "ppl other": 9.64,
        "swde": 29.16,
        "fda": 11.71,
        "squad": 25.07,
    }
    assert {name: row["printed"] for name, row in figures.items()} == of_print
    gap = recallkit.read_comparison(out / "Pile-400M" / "gap").tables.gap.filter(
        source="ALL", slice="ar_hit", model="rwkv-4-430m-pile"
    )
    figures = {row["figure"]: row for row in table.filter(model="RWKV/rwkv-4-430m-pile").to_dicts()}
    assert figures["ppl ar"]["measured"] == pytest.approx(gap["ppl_model"].item())
    assert figures["gap share"]["measured"] == pytest.approx(100 * gap["gap_share"].item())
    assert all(row["measured"] is not None for row in figures.values())
    assert table.filter(pl.col("group") != "360M, 10B")["printed"].null_count() == len(table) - len(
        table.filter(group="360M, 10B")
    )
    folders = [out / "slices" / "scores", out / "360M-10B" / "recall" / "documents"]
    done = {
        path: path.stat().st_mtime_ns for folder in folders for path in folder.rglob("*.parquet")
    }
    assert {path.stem for path in done if path.parent.parent == folders[1]} == {
        "swde-v0",
        "fda-v0",
        "squad-v0",
    }
    assert len(done) == 4 + 2 * 3
    with pytest.raises(SystemExit):
        released.main()
    assert done == {path: path.stat().st_mtime_ns for path in done}
    assert pl.read_csv(out / "released.csv").equals(table)


@pytest.mark.parametrize(
    ("figure", "measured", "low", "high", "differs"),
    [
        ("ppl all", 8.70, None, None, False),
        ("ppl all", 8.80, None, None, True),
        ("swde", 31.0, 29.0, 33.0, False),
        ("swde", 31.0, 30.0, 32.0, True),
        ("gap share", 30.0, 20.0, 40.0, False),
        ("gap share", 30.0, 25.0, 40.0, True),
    ],
)
def test_a_figure_differs_where_print_is_outside(released, figure, measured, low, high, differs):
    row = released.beside_printed(
        "360M, 10B",
        {
            "model": "hazyresearch/based-360m",
            "figure": figure,
            "measured": measured,
            "low": low,
            "high": high,
        },
    )
    assert row["differs"] is differs


def test_a_reference_comes_with_the_models_of_its_group_and_the_plan_is_of_them(
    released, monkeypatch, capsys
):
    assert released.chosen(["*/mamba-1b", "allenai/Olmo-3*"]) == {
        "1.3B, 10B": ["hazyresearch/attn-1b", "hazyresearch/mamba-1b"],
        "Olmo, 7B": ["allenai/Olmo-3-1025-7B"],
    }
    monkeypatch.setattr(
        "sys.argv",
        [
            "released.py",
            "--plan",
            "--tflops",
            "100",
            "--tokens",
            "16M",
            "--models",
            "RWKV/rwkv-4-1b5-pile",
        ],
    )
    released.main()
    assert (
        "At most 12 GB of weights and 2.0 GB of text; 0.4 hours of reading"
        in capsys.readouterr().out
    )
