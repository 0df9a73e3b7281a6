"""What cache policies keep: figures counted by hand, and those of quanto, of transformers'
quantised cache and of kvpress."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM, QuantizedCache
from transformers.cache_utils import Fp8QuantizedLayer

from recallkit.errors import UsageError, UserError
from recallkit.models.cache_policies import CACHES, parse_cache
from recallkit.models.compression import CachePolicy, Compressed
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from tests.conftest import ROOT

EVERY = [example.split(" or ")[0] for example, _ in CACHES.values()]


def needs(package: str) -> None:
    """Skips where a package is not installed, without importing it."""
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{package} is not installed")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def numbered(first: int, last: int) -> torch.Tensor:
    """Keys (1, 1, last - first, 1) that are the numbers of their ids."""
    return torch.arange(first, last, dtype=torch.float32).view(1, 1, -1, 1)


def read(policy: CachePolicy, keys: torch.Tensor, chunk: int) -> Compressed:
    """What is left of keys (b, h, t, d), which are values as well, that come in chunks."""
    past = keys[:, :, :0], keys[:, :, :0]
    for start in range(0, keys.shape[2], chunk):
        part = keys[:, :, start : start + chunk]
        stored = policy(
            torch.cat([past[0], part], 2),
            torch.cat([past[1], part], 2),
            min(start + chunk, keys.shape[2]),
        )
        past = stored.keys, stored.values
    return stored


def test_codes_and_bytes_counted_by_hand():
    """One row of two heads with three ids of four entries, the last of them exact; a group is a
    head's vector."""
    keys = torch.tensor(
        [
            [
                [[0.0, 1, 2, 3], [-9, -1, -4, 9], [0.1, 0.2, 0.3, 0.4]],
                [[5, 5, 5, 5], [1, 1.4, 2.6, 4], [7, 7, 7, 8]],
            ],
        ],
    )
    stored = parse_cache("int2:residual=1")(keys, keys, 3)
    rounded = [
        [[0.0, 1, 2, 3], [-9, -3, -3, 9], [0.1, 0.2, 0.3, 0.4]],
        [[5, 5, 5, 5], [1, 1, 3, 4], [7, 7, 7, 8]],
    ]
    assert stored.keys.tolist() == torch.tensor([rounded]).tolist()
    # Four groups of a byte, a scale and a minimum; two vectors of float32.
    one = 4 * (4 // 4 + 4 + 4) + 2 * 4 * 4
    assert stored.num_bytes == 2 * one
    assert parse_cache("int4:residual=0:group=2")(keys, keys, 3).num_bytes == 2 * 12 * (1 + 4 + 4)
    assert (
        parse_cache("int8:residual=9")(keys, keys, 3).num_bytes
        == parse_cache("full")(keys, keys, 3).num_bytes
        == 2 * 24 * 4
    )
    assert parse_cache("fp8")(keys, keys, 3).num_bytes == 2 * (24 + 4)


@pytest.mark.parametrize(("bits", "steps"), [(8, 255), (4, 15), (2, 3)])
def test_an_error_is_at_most_half_a_step(bits, steps):
    keys = drawn(2, 3, 40, 64)
    stored = parse_cache(f"int{bits}:residual=0:group=32")(keys, keys, 40).keys
    groups, errors = keys.view(-1, 32), (stored - keys).view(-1, 32).abs().amax(1)
    step = (groups.amax(1) - groups.amin(1)) / steps
    assert (errors <= 0.5001 * step).all()
    assert (errors > 0.25 * step).any()


def test_fp8_scales_the_largest_magnitude_of_a_row_to_448():
    keys = torch.tensor([448.0, 100, 3.3, -0.07]).view(1, 1, 1, 4)
    stored = parse_cache("fp8")(keys, 10 * keys, 1)
    # E4m3 has three bits behind the leading one.
    assert stored.keys.flatten().tolist() == [448, 96, 3.25, -0.0703125]
    torch.testing.assert_close(stored.values, 10 * stored.keys)


def test_a_window_is_the_first_ids_and_the_latest():
    stored = read(parse_cache("window:2+3"), numbered(0, 20), 4)
    assert stored.keys.flatten().tolist() == stored.values.flatten().tolist() == [0, 1, 17, 18, 19]
    assert stored.num_bytes == 2 * 5 * 4
    assert parse_cache("window:0+3")(numbered(0, 9), numbered(0, 9), 9).keys.flatten().tolist() == [
        6,
        7,
        8,
    ]
    assert parse_cache("window:4+256")(numbered(0, 9), numbered(0, 9), 9).keys.shape[2] == 9


def test_the_share_that_is_evicted_is_of_all_ids_that_were_seen():
    """The smallest norms are those of the first ids; of 8, 16 and 20 ids 2, 4 and 5 are kept, and
    what was evicted never returns."""
    keys = numbered(1, 21)
    assert read(parse_cache("knorm:0.75"), keys, 20).keys.flatten().tolist() == [1, 2, 3, 4, 5]
    assert read(parse_cache("knorm:0.75"), keys, 8).keys.flatten().tolist() == [1, 2, 9, 10, 17]
    assert read(parse_cache("knorm:0.75"), keys.flip(2), 8).keys.flatten().tolist() == [
        5,
        4,
        3,
        2,
        1,
    ]
    assert read(parse_cache("knorm:0.99"), keys, 8).keys.flatten().tolist() == [1]


def test_heads_evict_on_their_own():
    keys = torch.cat([numbered(1, 5), numbered(1, 5).flip(2)], 1)
    assert parse_cache("knorm:0.5")(keys, keys, 4).keys.flatten(2).tolist() == [[[1, 2], [2, 1]]]


def test_keydiff_evicts_what_points_where_most_keys_point():
    """Norms do not matter: the one that points elsewhere stays, whatever its length."""
    keys = torch.tensor([[1.0, 0], [9, 0.1], [0, 99.0], [5, 0]]).view(1, 1, 4, 2)
    stored = parse_cache("keydiff:0.75")(keys, keys, 4)
    assert stored.keys.tolist() == keys[:, :, 2:3].tolist()


@pytest.mark.parametrize(
    "text",
    [*EVERY, "int4:residual=3", pytest.param("int4:hqq", marks=pytest.mark.slow)],
)
def test_no_row_influences_another(text):
    if "hqq" in text:
        needs("hqq")
    keys, values = (
        drawn(3, 2, 300, width) * torch.tensor([1.0, 10, 0.3]).view(3, 1, 1, 1) for width in (16, 8)
    )
    together = parse_cache(text)(keys, values, 300)
    for row in range(3):
        alone = parse_cache(text)(keys[row : row + 1], values[row : row + 1], 300)
        assert torch.equal(alone.keys, together.keys[row : row + 1])
        assert torch.equal(alone.values, together.values[row : row + 1])
        assert alone.num_bytes == together.num_bytes


@pytest.mark.parametrize("text", EVERY)
def test_what_was_kept_is_kept_unchanged(text):
    keys = drawn(2, 2, 300, 16)
    once = parse_cache(text)(keys, keys, 300)
    again = parse_cache(text)(once.keys, once.values, 300)
    torch.testing.assert_close(again.keys, once.keys, rtol=1e-6, atol=1e-6)
    assert again.num_bytes == once.num_bytes


@pytest.mark.parametrize("bits", [2, 4, 8])
def test_the_error_does_not_grow_in_thirty_rounds(bits):
    keys, policy = drawn(1, 2, 1000, 64, dtype=torch.bfloat16), parse_cache(f"int{bits}:residual=0")
    first = stored = policy(keys, keys, 1000)
    for _ in range(30):
        stored = policy(stored.keys, stored.values, 1000)
    errors = [
        (rounded.keys.float() - keys.float()).square().mean().sqrt().item()
        for rounded in (first, stored)
    ]
    assert errors[1] < (1.002 if bits == 8 else 1.001) * errors[0]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("int16", "cache=int16: no such cache policy; did you mean int8?"),
        ("knrom:0.5", "cache=knrom:0.5: no such cache policy; did you mean knorm?"),
        (
            "int4:half",
            (
                "cache=int4:half: half is neither group=N nor residual=N, nor one of affine, "
                "quanto, hqq; write int4 or"
            ),
        ),
        ("int4:group=0", "cache=int4:group=0: group=0 is neither"),
        (
            "int8:quanto",
            "cache=int8:quanto: quanto has 2 and 4 bits; write int8 or int8:group=64:residual=128",
        ),
        (
            "window:4",
            (
                "cache=window:4: a window is a number of first ids, a plus sign, and a number of "
                "latest ids of at least 1; write window:4+256"
            ),
        ),
        ("window:4+0", "cache=window:4+0: a window is"),
        ("window", "cache=window: window takes no such options; write window:4+256"),
        (
            "knorm:1",
            "cache=knorm:1: 1 is not a share of ids to evict, between 0 and 1; write knorm:0.5",
        ),
        (
            "keydiff:most",
            (
                "cache=keydiff:most: most is not a share of ids to evict, between 0 and 1; write "
                "keydiff:0.5"
            ),
        ),
        ("full:2", "cache=full:2: full takes no such options; write full"),
    ],
)
def test_what_is_no_policy_is_refused(text, said):
    with pytest.raises(UsageError) as raised:
        parse_cache(text)
    assert raised.value.line().startswith(said)


def test_groups_that_do_not_divide_a_head_are_refused():
    keys = drawn(1, 1, 200, 96)
    with pytest.raises(
        UserError,
        match=r"groups of 64 entries do not divide a head's width of 96; give int4:group=32$",
    ):
        parse_cache("int4")(keys, keys, 200)


def test_a_backend_that_is_not_installed_is_named(monkeypatch):
    def missing(package):
        raise metadata.PackageNotFoundError(package)

    monkeypatch.setattr(metadata, "version", missing)
    with pytest.raises(
        UsageError,
        match=r'optimum-quanto is not installed; pip install "recallkit-lm\[cache\]", or leave quanto out$',
    ):
        parse_cache("int4:quanto")


@pytest.mark.slow  # quanto takes a minute to build its extension
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("bits", [2, 4])
def test_figures_and_bytes_are_those_of_quanto(bits, dtype):
    needs("optimum-quanto")
    keys, values = drawn(2, 3, 48, 64, dtype=dtype), drawn(2, 3, 48, 32, dtype=dtype)
    for options in ("residual=0", "residual=8:group=16"):
        ours = parse_cache(f"int{bits}:{options}")(keys, values, 48)
        theirs = parse_cache(f"int{bits}:{options}:quanto")(keys, values, 48)
        assert torch.equal(ours.keys, theirs.keys)
        assert torch.equal(ours.values, theirs.values)
        assert ours.num_bytes == theirs.num_bytes


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_hqq_is_about_as_near_in_as_many_bytes(bits):
    """Also for a number of groups that its packing cannot divide, which we pad."""
    needs("hqq")
    keys = drawn(2, 3, 51, 64)
    ours = parse_cache(f"int{bits}:residual=0")(keys, keys, 51)
    theirs = parse_cache(f"int{bits}:residual=0:hqq")(keys, keys, 51)
    padding = 3 * (64 * bits // 8 + 4 + 4)
    assert ours.num_bytes <= theirs.num_bytes <= ours.num_bytes + 2 * padding
    errors = [(stored.keys - keys).abs().mean().item() for stored in (ours, theirs)]
    assert 0.7 * errors[0] < errors[1] < 1.1 * errors[0]


@pytest.mark.slow
@pytest.mark.parametrize("bits", [2, 4])
def test_a_llama_read_in_chunks_predicts_what_it_does_with_the_cache_of_transformers(
    bits,
    tmp_path,
):
    """Where a chunk is as long as what theirs leaves exact, both quantise everything after each."""
    needs("optimum-quanto")
    model = small_llama()
    model.save_pretrained(tmp_path)
    ids = torch.randint(64, (1, 50))
    cache = QuantizedCache("quanto", model.config, nbits=bits, q_group_size=16, residual_length=10)
    with torch.inference_mode():
        logits = torch.cat(
            [model(part, past_key_values=cache).logits[0] for part in ids.split(10, 1)],
        )
        exact = model(ids).logits[0]
    for backend in ("affine", "quanto"):
        spec = ModelSpec(str(tmp_path), cache=f"int{bits}:residual=0:group=16:{backend}", chunk=10)
        loaded = load_model(ModelPlan(spec, 64, device="cpu"))
        ours = loaded.score(ids[0].numpy().astype(np.uint32), [0, 50]).nll
        assert (
            np.abs(
                ours - functional.cross_entropy(logits[:-1], ids[0, 1:], reduction="none").numpy(),
            ).max()
            < 1e-5
        )
    assert (
        np.abs(
            ours - functional.cross_entropy(exact[:-1], ids[0, 1:], reduction="none").numpy(),
        ).max()
        > 1e-3
    )


def test_fp8_of_one_chunk_is_that_of_transformers():
    keys, values = drawn(1, 2, 30, 16), 7 * drawn(1, 2, 30, 8)
    layer = Fp8QuantizedLayer()
    layer.update(keys, values)
    stored = parse_cache("fp8")(keys, values, 30)
    assert torch.equal(stored.keys, layer._dequantize(layer._quantized_keys))
    assert torch.equal(stored.values, layer._dequantize(layer._quantized_values))


def small_llama() -> LlamaForCausalLM:
    """Random, with two heads of keys of width 16, and large weights, so that what is lost shows."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": 64,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_hidden_layers": 3,
        "initializer_range": 0.3,
    }
    return LlamaForCausalLM(
        LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2),
    ).eval()


# ---------------------------------------------------------------- packages that want other versions

PRESSES = """
import sys
import torch
from kvpress import KeyDiffPress, KnormPress
from safetensors.torch import load_file, save_file
from transformers import DynamicCache, LlamaForCausalLM

model, ids = LlamaForCausalLM.from_pretrained("model").eval(), load_file("ids.safetensors")["ids"]
kept = {}
for name, press in (("knorm", KnormPress(0.3)), ("keydiff", KeyDiffPress(0.3))):
    cache = DynamicCache()
    with torch.inference_mode(), press(model):
        model(ids, past_key_values=cache)
    for layer, part in enumerate(cache.layers):
        kept |= {f"{name} keys {layer}": part.keys.contiguous(), f"{name} values {layer}": part.values.contiguous()}
save_file(kept, "kept.safetensors")
"""


def environment(folder: Path, package: str) -> Path:
    """The Python of a new environment with a package and what it requires in other versions than
    this one has; the rest is shared."""
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    [site_packages] = folder.glob("venv/lib/python*/site-packages")
    shared = [path for path in sys.path if path.endswith("site-packages")]
    (site_packages / "shared.pth").write_text("\n".join(shared) + "\n", encoding="utf-8")
    python = folder / "venv/bin/python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", package], check=True)
    return python


@pytest.mark.slow
def test_what_is_evicted_is_what_kvpress_evicts(tmp_path):
    """After a prefill of a random Llama, whose keys have two heads; kvpress leaves them in the
    order of their scores."""
    python = environment(tmp_path, "kvpress==0.5.5")
    model = small_llama()
    model.save_pretrained(tmp_path / "model")
    ids = torch.randint(64, (2, 100))
    save_file({"ids": ids}, tmp_path / "ids.safetensors")
    (tmp_path / "presses.py").write_text(PRESSES, encoding="utf-8")
    subprocess.run([python, "presses.py"], check=True, cwd=tmp_path)
    theirs = load_file(tmp_path / "kept.safetensors")
    cache = DynamicCache()
    with torch.inference_mode():
        model(ids, past_key_values=cache)
    for name in ("knorm", "keydiff"):
        for number, layer in enumerate(cache.layers):
            ours = parse_cache(f"{name}:0.3")(layer.keys, layer.values, 100)
            for stored, part in ((ours.keys, "keys"), (ours.values, "values")):
                assert stored.shape == (2, 2, 70, 16)
                torch.testing.assert_close(
                    by_first_entry(stored),
                    by_first_entry(theirs[f"{name} {part} {number}"]),
                )


def by_first_entry(vectors: torch.Tensor) -> torch.Tensor:
    """Vectors (b, h, K, d), sorted by their first entries."""
    return vectors.gather(2, vectors[..., :1].argsort(2).expand_as(vectors))


@pytest.mark.slow
def test_hqq_in_an_environment_of_its_own(tmp_path):
    """Where HQQ is installed, transformers imports it, and with it what makes torch warn."""
    python = environment(tmp_path, "hqq==0.2.8.post1")
    command = [
        python,
        "-m",
        "pytest",
        "-q",
        "-m",
        "slow",
        "-W",
        "ignore",
        "-p",
        "no:cacheprovider",
        __file__,
        "-k",
        "hqq and not own",
    ]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    assert "4 passed" in done.stdout, done.stdout
