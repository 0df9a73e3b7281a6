"""GGUF files: the same numbers as the same weights in safetensors, the same ids as the tokenizer
they were written with."""

from __future__ import annotations

import json
import resource
import struct
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from recallkit.errors import UserError
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts
from tests.models.test_hf import LENGTHS, ragged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

NUM_HEADS, NUM_KV_HEADS = 4, 2
TENSOR_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


@pytest.fixture(scope="module")
def llama(tmp_path_factory) -> Path:
    """A folder with one Llama with random weights: `safetensors/`, `x.gguf`, which also has our
    tokenizer, and `bare.gguf`, without it."""
    folder = tmp_path_factory.mktemp("gguf")
    torch.manual_seed(3)
    config = LlamaConfig(
        vocab_size=4096,
        hidden_size=48,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=NUM_HEADS,
        num_key_value_heads=NUM_KV_HEADS,
        max_position_embeddings=256,
        rope_parameters={"rope_type": "default", "rope_theta": 5000.0},
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    model.save_pretrained(folder / "safetensors")
    write_gguf(folder / "x.gguf", model)
    write_gguf(folder / "bare.gguf", model, tokenizer=False)
    return folder


def write_gguf(
    path: Path,
    model: LlamaForCausalLM,
    more: Mapping[str, np.ndarray] | None = None,
    precision: str = "F32",
    *,
    tokenizer: bool = True,
) -> None:
    """A llama.cpp file of the model, with the built-in tokenizer or none; blocks of `precision`
    have to divide the matrices' rows."""
    config = model.config
    of_matrices = gguf.GGMLQuantizationType[precision]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    if tokenizer:
        add_tokenizer(writer)
    for name, tensor in model.state_dict().items():
        values = permuted(name, tensor.numpy())
        kind = of_matrices if values.ndim == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(gguf_name(name), gguf.quants.quantize(values, kind), raw_dtype=kind)
    for name, values in (more or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_tokenizer(writer: gguf.GGUFWriter, more: Sequence[str] = ()) -> None:
    """The built-in tokenizer, and `more` special tokens behind it."""
    tokenizer = load_tokenizer(None)
    settings = json.loads(tokenizer.backend.to_str())
    tokens = [
        *(tokenizer.backend.id_to_token(index) for index in range(tokenizer.vocab_size)),
        *more,
    ]
    special = {token["content"] for token in settings["added_tokens"]} | set(more)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types(
        [gguf.TokenType.CONTROL if token in special else gguf.TokenType.NORMAL for token in tokens],
    )
    writer.add_token_merges([" ".join(merge) for merge in settings["model"]["merges"]])
    if not more:
        writer.add_eos_token_id(tokenizer.end_token_id)


def gguf_name(name: str) -> str:
    stem = name.removesuffix(".weight")
    if stem in TENSOR_NAMES:
        return f"{TENSOR_NAMES[stem]}.weight"
    _, _, layer, rest = stem.split(".", 3)
    return f"blk.{layer}.{TENSOR_NAMES[rest]}.weight"


def permuted(name: str, weights: np.ndarray) -> np.ndarray:
    """llama.cpp turns neighbours where transformers turns halves: rows of queries and keys are
    interleaved."""
    heads = {"q_proj": NUM_HEADS, "k_proj": NUM_KV_HEADS}.get(name.split(".")[-2])
    if heads is None:
        return weights
    return np.ascontiguousarray(
        weights.reshape(heads, 2, -1, weights.shape[1]).swapaxes(1, 2).reshape(weights.shape),
    )


def test_a_gguf_gives_the_numbers_of_the_same_weights_in_safetensors(llama, capfd):
    model = load_model(ModelPlan(ModelSpec(str(llama / "x.gguf")), 4096, device="cpu"))
    same = load_model(ModelPlan(ModelSpec(str(llama / "safetensors")), 4096, device="cpu"))
    assert (model.vocab_size, model.max_length) == (same.vocab_size, same.max_length) == (4096, 256)
    ids, offsets = ragged(LENGTHS, 4096)
    one, other = model.score(ids, offsets), same.score(ids, offsets)
    np.testing.assert_allclose(one.nll, other.nll, rtol=0, atol=1e-5)
    assert (one.argmax == other.argmax).mean() > 0.99
    assert other.nll.std() > 0.1, "weights that all but cancel would make any two models equal"
    assert "dequantizing" not in capfd.readouterr().err.replace("-", "")


def test_its_tokenizer_gives_the_ids_of_the_one_it_was_written_with(llama):
    mine, original = load_tokenizer(str(llama / "x.gguf")), load_tokenizer(None)
    texts = [*made_up_texts(20, 100), "naïve 中文 12345\n\n\t x<|endoftext|>y", "  two  spaces "]
    for one, other in zip(mine.encode(texts), original.encode(texts), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (mine.vocab_size, mine.end_token_id) == (original.vocab_size, original.end_token_id)
    ids, _ = mine.encode(texts[:1])
    assert mine.decode([ids]) == texts[:1]


@pytest.mark.parametrize(
    ("family", "adds", "prefix"),
    [("llama", True, (4096,)), ("llama", False, ()), ("gemma3", None, (4096,))],
)
def test_its_keys_say_what_begins_a_text_and_what_ends_one(tmp_path, family, adds, prefix):
    writer = gguf.GGUFWriter(tmp_path / "t.gguf", family)
    add_tokenizer(writer, ["<bos>", "<|im_end|>"])
    writer.add_bos_token_id(4096)
    writer.add_eos_token_id(4097)
    writer.add_block_count(1)
    if adds is not None:
        writer.add_add_bos_token(adds)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tokenizer = load_tokenizer(str(tmp_path / "t.gguf"))
    assert tokenizer.prefix.ids == prefix
    assert tokenizer.end_token == "<|endoftext|>", "not what ends a turn"


def cut_at(share: float):
    return lambda content: content[: int(len(content) * share)]


def with_field(name: str, value: int):
    """Another value of a field that is a 32-bit number."""

    def damaged(content: bytes) -> bytes:
        key = name.encode() + struct.pack("<I", 4)
        assert content.count(key) == 1
        place = content.index(key) + len(key)
        return content[:place] + struct.pack("<I", value) + content[place + 4 :]

    return damaged


def with_offset(name: str, change: int):
    """Another offset of a tensor's values."""

    def damaged(content: bytes) -> bytes:
        place = content.index(name.encode()) + len(name)
        place += 4 + 8 * struct.unpack_from("<I", content, place)[0] + 4
        offset = (struct.unpack_from("<Q", content, place)[0] + change) % 2**64
        return content[:place] + struct.pack("<Q", offset) + content[place + 8 :]

    return damaged


DAMAGES = {
    "no blocks": with_field("llama.block_count", 0),
    "more blocks than it has": with_field("llama.block_count", 2**31),
    "5 heads": with_field("llama.attention.head_count", 5),
    "an offset of the next tensor": with_offset("blk.0.ffn_up.weight", 48 * 96 * 4),
    "an offset at which 64 bits overflow": with_offset("blk.0.ffn_up.weight", 2**64 - 48 * 96 * 4),
    "text": lambda _: b"this is no model\n" * 9,
    "cut in its settings": lambda content: content[:300],
    "cut in its weights": cut_at(0.7),
    "an unknown version": lambda content: content[:4] + b"\x63\0\0\0" + content[8:],
    "an unknown architecture": lambda content: content.replace(b"llama", b"lhama"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_one_line(llama, tmp_path, damage, capfd):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(DAMAGES[damage]((llama / "bare.gguf").read_bytes()))
    with pytest.raises(
        UserError,
        match=r"transformers cannot load it|its tensors have|weights are missing",
    ) as caught:
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    assert len(caught.value.line()) < 400
    assert capfd.readouterr().err == ""


def test_tensors_that_transformers_would_leave_out(llama, tmp_path):
    """Biases, of which its Llama has none, are skipped without a word."""
    model = LlamaForCausalLM.from_pretrained(llama / "safetensors")
    path = tmp_path / "more.gguf"
    write_gguf(path, model, {"blk.0.attn_q.bias": np.ones(48, np.float32)}, tokenizer=False)
    with pytest.raises(
        UserError,
        match=(
            "its tensors have 48 weights more than its architecture, which transformers would "
            "leave out"
        ),
    ):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    write_gguf(path, model, {"rope_freqs.weight": np.ones(6, np.float32)}, tokenizer=False)
    assert load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu")).vocab_size == 4096


def test_a_vocabulary_without_weights_takes_no_memory(llama, tmp_path):
    path = tmp_path / "damaged.gguf"
    path.write_bytes(with_field("llama.vocab_size", 1 << 24)((llama / "bare.gguf").read_bytes()))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(
        UserError,
        match="its config asks for 1,610,654,448 weights, and its files have 434,928",
    ):
        load_model(ModelPlan(ModelSpec(str(path)), 4096, device="cpu"))
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000, "KiB"
