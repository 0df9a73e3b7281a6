"""The recipes of examples/nlls: what they write for a pack is what scoring here finds."""

from __future__ import annotations

import ast
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional

import recallkit
from recallkit.scoring import score_path
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import ROOT, made_up_texts, write_jsonl
from tests.models.completions_server import Server

FOLDER = ROOT / "examples/nlls"
RECIPES = sorted(FOLDER.glob("*.py"))
SEQ_LEN, BEGIN = 48, 0


def needs(*modules: str) -> pytest.MarkDecorator:
    lacking = [name for name in modules if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=f"needs {', '.join(lacking)}")


@pytest.fixture(scope="module")
def slices(home, tmp_path_factory) -> Path:
    """Slices of some 2,600 tokens with their pack, the changed text, and the counts beside them."""
    folder = tmp_path_factory.mktemp("recipes")
    train = write_jsonl(folder / "train.jsonl", made_up_texts(60, 200, seed=1))
    valid = write_jsonl(folder / "valid.jsonl", made_up_texts(25, 200, seed=2))
    recallkit.count([str(train)], out=folder / "counts.duckdb")
    options = {"counts": folder / "counts.duckdb", "max_count": 20, "seq_len": SEQ_LEN}
    recallkit.slice([str(valid)], **options, pack=True, out=folder / "slices")
    return folder / "slices"


@pytest.fixture(scope="module")
def models(slices, tmp_path_factory) -> dict[str, Path]:
    """Two GPT-2s that have learned a little, with the tokenizer of the slices."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    folder = tmp_path_factory.mktemp("gpt2")
    texts = torch.from_numpy(np.load(slices / "pack/ids.npy")).long()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=load_tokenizer(None).backend)
    for seed, name in enumerate(("deep", "flat")):
        torch.manual_seed(seed)
        shape = {"n_embd": 16, "n_head": 2, "n_layer": 2 - seed, "n_positions": SEQ_LEN}
        config = GPT2Config(vocab_size=4096, **shape, bos_token_id=0, eos_token_id=0)
        model = GPT2LMHeadModel(config)
        optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
        for step in range(16):
            some = texts[step % 8 :: 8]
            logits = model(some[:, :-1]).logits
            loss = functional.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    return {name: folder / name for name in ("deep", "flat")}


def changed_pack(slices: Path) -> Path:
    [pack] = slices.glob("intervene/*/pack")
    return pack


def scored(slices: Path, model: Path) -> np.ndarray:
    """The NLLs of scoring here, in the order of the pack (num_rows,)."""
    recallkit.score(str(model), slices=slices, device="cpu")
    return pl.read_parquet(score_path(slices, str(model)))["nll"].to_numpy()


def recorded(out: Path, pack: Path) -> np.ndarray:
    """The NLLs of a recipe's array that are not behind a sequence's end (num_rows,)."""
    array, lengths = np.load(out), np.load(pack / "lengths.npy")
    assert array.shape == (len(lengths), SEQ_LEN)
    assert array.dtype == np.float32
    return array[np.arange(SEQ_LEN) < lengths[:, None] - 1]


def check_same(out: Path, slices: Path, expected: np.ndarray) -> None:
    np.testing.assert_allclose(recorded(out, slices / "pack"), expected, rtol=0, atol=1e-4)


def python(*words: object) -> None:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_is_short_and_knows_nothing_of_us(path):
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60
    nodes = list(ast.walk(ast.parse(text)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not any(name.startswith("recallkit") for name in names)
    assert path.stem not in names, "it would import itself: its folder comes first"
    assert f"`{path.name}`" in (FOLDER / "README.md").read_text(encoding="utf-8")


def test_arrays_of_transformers_give_the_answer_to_the_digit(slices, models, load, run, tmp_path):
    recipe = load("nlls/transformers_loop")
    python(FOLDER / "transformers_loop.py", models["deep"], slices / "pack", tmp_path / "deep.npy")
    recipe.main(str(models["flat"]), slices / "pack", tmp_path / "flat.npy")
    for name, path in models.items():
        recipe.main(str(path), changed_pack(slices), tmp_path / f"{name}.changed.npy")
    arrays = {name: tmp_path / f"{name}.npy" for name in models}
    sources = {
        shutil.copytree(slices, tmp_path / "ours"): models,
        shutil.copytree(slices, tmp_path / "theirs"): arrays,
    }
    for name, path in models.items():
        check_same(arrays[name], slices, scored(tmp_path / "ours", path))

    counts = ("--counts", slices.parent / "counts.duckdb")
    for command, options in (("gap", ()), ("intervene", counts)):
        answers = []
        for folder, files in sources.items():
            named = [f"{name}={path}" for name, path in files.items()]
            done = run(command, *named, "--slices", folder, *options, "-o", tmp_path / command)
            answers.append(done.stdout)
        assert answers[0] == answers[1]
        assert "recall" in answers[0]


def test_a_begin_token_is_read_first_and_stated(slices, models, load, tmp_path):
    from tokenizers import processors
    from transformers import PreTrainedTokenizerFast

    path = Path(shutil.copytree(models["deep"], tmp_path / "begins"))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"n_positions": SEQ_LEN + 1}))
    weights = load_file(path / "model.safetensors")
    positions = weights["transformer.wpe.weight"]
    weights["transformer.wpe.weight"] = torch.cat([positions, torch.randn(1, 16)])
    save_file(weights, path / "model.safetensors", {"format": "pt"})
    backend = load_tokenizer(None).backend
    token = backend.id_to_token(BEGIN)
    template = {"single": f"{token} $A", "special_tokens": [(token, BEGIN)]}
    backend.post_processor = processors.TemplateProcessing(**template)
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=token).save_pretrained(path)

    out = tmp_path / "begins.npy"
    load("nlls/transformers_loop").main(str(path), slices / "pack", out)
    nll, copy = recorded(out, slices / "pack"), shutil.copytree(slices, tmp_path / "slices")
    np.testing.assert_allclose(nll, scored(copy, path), rtol=0, atol=1e-4)
    assert json.loads(out.with_suffix(".json").read_text())["prefix"] == BEGIN
    plain = tmp_path / "plain.npy"
    load("nlls/transformers_loop").main(str(models["deep"]), slices / "pack", plain)
    assert not np.allclose(nll, recorded(plain, slices / "pack"), atol=0.01)


@pytest.fixture(scope="module")
def llama(tiny_model, tmp_path_factory) -> Path:
    """A tiny Llama, whose context is longer than a sequence, with the tokenizer of the slices."""
    from transformers import PreTrainedTokenizerFast

    path = Path(shutil.copytree(tiny_model("llama"), tmp_path_factory.mktemp("llama") / "model"))
    PreTrainedTokenizerFast(tokenizer_object=load_tokenizer(None).backend).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def nlls_of_llama(slices, llama, tmp_path_factory) -> np.ndarray:
    """Its NLLs by scoring here (num_rows,)."""
    return scored(shutil.copytree(slices, tmp_path_factory.mktemp("llama") / "slices"), llama)


def log_softmax_of(path: Path, ids: list[int]) -> torch.Tensor:
    """Log-probabilities (t, vocabulary) behind each of ids (t,)."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0].log_softmax(1)


def check_nlls_behind(prefix: int, path: Path, out: Path, slices: Path) -> None:
    """The first and the last sequence's NLLs are those of a pass over the prefix and the ids."""
    ids, lengths = np.load(slices / "pack/ids.npy"), np.load(slices / "pack/lengths.npy")
    for row in (0, -1):
        text = [prefix, *ids[row, : lengths[row]].tolist()]
        expected = -log_softmax_of(path, text)[range(1, len(text) - 1), text[2:]]
        written = np.load(out)[row, : lengths[row] - 1]
        np.testing.assert_allclose(written, expected, rtol=0, atol=1e-4)
    stated = json.loads(out.with_suffix(".json").read_text())
    digest = json.loads((slices / "manifest.json").read_text())["sequences_digest"]
    assert stated == {"sequences_digest": digest, "unit": "nats", "prefix": prefix}


def test_a_server_is_asked_for_all_of_it(slices, llama, nlls_of_llama, load, tmp_path):
    server = Server(llama)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    name, recipe = f"http://127.0.0.1:{server.server_port}/v1#tiny", load("nlls/vllm_server")
    try:
        recipe.main(name, slices / "pack", tmp_path / "a.npy")
        recipe.main(name, slices / "pack", tmp_path / "b.npy", 7)
    finally:
        server.shutdown()
        server.server_close()
    check_same(tmp_path / "a.npy", slices, nlls_of_llama)
    check_nlls_behind(7, llama, tmp_path / "b.npy", slices)


def test_prompt_logprobs_become_nlls(slices, llama, nlls_of_llama, load, tmp_path, monkeypatch):
    class LLM:
        """vLLM's as far as the recipe needs it."""

        begin: tuple[int, ...] = ()

        def __init__(self, model: str, max_model_len: int) -> None:
            assert max_model_len == SEQ_LEN + 3
            self.path = Path(model)

        def get_tokenizer(self) -> SimpleNamespace:
            return SimpleNamespace(encode=lambda text: [*self.begin, 9], bos_token_id=7)

        def generate(self, prompts: list[dict], params: SimpleNamespace) -> list[SimpleNamespace]:
            assert params == SimpleNamespace(prompt_logprobs=0, max_tokens=1, temperature=0)
            return [self.output(prompt["prompt_token_ids"]) for prompt in prompts]

        def output(self, ids: list[int]) -> SimpleNamespace:
            rows = log_softmax_of(self.path, ids)
            values = rows[range(len(ids) - 1), ids[1:]].tolist()
            logs = [{i: SimpleNamespace(logprob=x)} for i, x in zip(ids[1:], values, strict=True)]
            return SimpleNamespace(prompt_logprobs=[None, *logs])

    vllm = SimpleNamespace(LLM=LLM, SamplingParams=SimpleNamespace)
    monkeypatch.setitem(sys.modules, "vllm", vllm)
    load("nlls/vllm_offline").main(str(llama), slices / "pack", tmp_path / "a.npy")
    check_same(tmp_path / "a.npy", slices, nlls_of_llama)
    LLM.begin = (7,)
    load("nlls/vllm_offline").main(str(llama), slices / "pack", tmp_path / "b.npy")
    check_nlls_behind(7, llama, tmp_path / "b.npy", slices)


PARALLEL = """
import sys
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy

recipes, pack, out = map(Path, sys.argv[1:])
sys.path.insert(0, str(recipes))
import megatron_loop
import torchtitan_loop


class StandIn(torch.nn.Module):
    # Called as both programs call their models: with masks, and with labels.
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.from_numpy(np.load(out / "weight.npy")))

    def get_attention_masks(self, positions):
        return positions + 1

    def forward(self, ids, positions, masks, labels=None):
        assert torch.equal(positions, torch.arange(ids.shape[1]).expand_as(ids))
        logits = self.weight[ids].cumsum(1) @ self.weight.T
        if labels is None:
            assert torch.equal(masks, positions + 1)
            return logits
        assert masks is None
        return cross_entropy(logits.transpose(1, 2), labels, reduction="none")


dist.init_process_group("gloo")
torchtitan_loop.record(StandIn(), pack, out / "torchtitan.npy")
megatron_loop.record(StandIn(), dist.group.WORLD, pack, out / "megatron.npy", 7)
dist.destroy_process_group()
"""


def test_processes_share_the_batches_out(slices, tmp_path):
    (tmp_path / "both.py").write_text(PARALLEL)
    ids = torch.from_numpy(np.load(slices / "pack/ids.npy")).long()
    assert len(ids) % 8, "some rows are read a second time"
    weight = 0.2 * torch.randn(4096, 16)
    np.save(tmp_path / "weight.npy", weight.numpy())
    torchrun = ("-m", "torch.distributed.run", "--nproc-per-node", 2, "--master-port", free_port())
    python(*torchrun, tmp_path / "both.py", FOLDER, slices / "pack", tmp_path)
    for name, prefix in (("torchtitan", None), ("megatron", 7)):
        texts = ids if prefix is None else functional.pad(ids, (1, 0), value=prefix)
        logits = weight[texts[:, :-1]].cumsum(1) @ weight.T
        losses = functional.cross_entropy(logits.transpose(1, 2), texts[:, 1:], reduction="none")
        written = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_allclose(written, losses[:, -SEQ_LEN:], rtol=0, atol=1e-4)
        stated = json.loads((tmp_path / f"{name}.json").read_text())
        assert stated["prefix"] == (-1 if prefix is None else prefix)


WEIGHTS = """
import sys
from flax import serialization
import numpy as np

dense = dict(np.load(sys.argv[1]))
params = {"embed": {"embedding": dense.pop("embedding")}, "qkv": dense}
open(sys.argv[2], "wb").write(serialization.to_bytes(params))
"""


@needs("jax", "flax")
def test_jax_gives_the_nlls_of_its_weights(slices, tmp_path):
    rng = np.random.default_rng(0)
    shapes = {"embedding": (4096, 16), "kernel": (16, 48), "bias": (48,)}
    tensors = {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "weights.npz", **tensors)
    python("-c", WEIGHTS, tmp_path / "weights.npz", tmp_path / "weights.msgpack")
    weights = tmp_path / "weights.msgpack"
    python(FOLDER / "jax_flax.py", weights, slices / "pack", tmp_path / "a.npy")

    embedding, kernel, bias = map(torch.from_numpy, tensors.values())
    ids = torch.from_numpy(np.load(slices / "pack/ids.npy")).long()
    x = embedding[ids[:, :-1]]
    q, k, v = (x @ kernel + bias).chunk(3, -1)
    logits = (x + functional.scaled_dot_product_attention(q, k, v, is_causal=True)) @ embedding.T
    expected = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
    np.testing.assert_allclose(np.load(tmp_path / "a.npy"), expected, rtol=0, atol=1e-4)


@needs("mlx", "mlx_lm")
def test_mlx_gives_the_nlls_of_scoring_here(slices, llama, nlls_of_llama, tmp_path):
    python(FOLDER / "mlx_loop.py", llama, slices / "pack", tmp_path / "a.npy")
    check_same(tmp_path / "a.npy", slices, nlls_of_llama)


@needs("llama_cpp")
def test_llama_cpp_gives_the_nlls_of_scoring_here(slices, tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.models.test_gguf import NUM_HEADS, NUM_KV_HEADS, write_gguf

    torch.manual_seed(0)
    heads = {"num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS}
    shape = {"vocab_size": 4096, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 2}
    config = LlamaConfig(**shape, **heads, max_position_embeddings=256, initializer_range=0.3)
    write_gguf(tmp_path / "x.gguf", LlamaForCausalLM(config))
    python(FOLDER / "llama_cpp_loop.py", tmp_path / "x.gguf", slices / "pack", tmp_path / "a.npy")
    expected = scored(shutil.copytree(slices, tmp_path / "slices"), tmp_path / "x.gguf")
    check_same(tmp_path / "a.npy", slices, expected)
