"""Files of rwkv.cpp: a really trained model gives the expected logits, any other file is one line,
and none takes memory."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from recallkit.errors import UserError
from recallkit.models.language_model import LanguageModel
from recallkit.models.native_model import build_model
from recallkit.models.rwkv_file import is_rwkv_file, read_rwkv_file

FOLDER = Path(os.environ.get("RECALLKIT_TEST_DATA", "no-such-folder")) / "models" / "tiny-rwkv-5v2"
D, WIDTH, VOCAB, HEAD = 8, 12, 7, 4
PLACES = {
    "mixer_norm.weight": "ln1.weight",
    "mlp_norm.bias": "ln2.bias",
    "mixer.time_mix_key": "att.time_mix_k",
    "mixer.time_mix_receptance": "att.time_mix_r",
    "mixer.key.weight": "att.key.weight",
    "mixer.value.weight": "att.value.weight",
    "mlp.time_mix_key": "ffn.time_mix_k",
    "mlp.time_mix_receptance": "ffn.time_mix_r",
    "mlp.key.weight": "ffn.key.weight",
}
"""Parameters of a block that have the shape of others, by their names here, and in the file."""


def load(path: Path) -> LanguageModel:
    return build_model(*read_rwkv_file(path), path).eval()


def real_file() -> Path:
    path = FOLDER / "tiny-rwkv-5v2-730K-FP32.bin"
    if not path.is_file():
        pytest.skip("RECALLKIT_TEST_DATA names no folder with models/tiny-rwkv-5v2")
    return path


def test_a_trained_model_gives_the_logits_that_came_with_it():
    model = load(real_file())
    expected = torch.from_numpy(np.fromfile(FOLDER / "expected-logits-5v2-730K.bin", "<f4"))
    ids = torch.tensor([list(b'"in')])
    with torch.no_grad():
        torch.testing.assert_close(model(ids)[0, -1], expected, rtol=0, atol=1e-4)
        state = model.initial_state(1)
        for i in range(3):
            hidden, state = model.read(ids[:, i : i + 1], state)
        torch.testing.assert_close(
            (hidden @ model.head_weight.T)[0, -1],
            expected,
            rtol=0,
            atol=1e-4,
        )


def tensors(version: int = 5, num_layers: int = 2) -> dict[str, np.ndarray]:
    """Random tensors as rwkv.cpp's converter writes them, in the order of a checkpoint."""
    draw = np.random.default_rng(0)

    def values(*shape: int) -> np.ndarray:
        return draw.standard_normal(shape).astype("<f4")

    actual = {
        "emb.weight": values(VOCAB, D),
        "blocks.0.ln0.weight": values(D),
        "blocks.0.ln0.bias": values(D),
    }
    for i in range(num_layers):
        block = {f"ln{n}.{part}": values(D) for n in (1, 2) for part in ("weight", "bias")}
        block |= {
            f"att.{word}.weight": values(D, D) for word in ("receptance", "key", "value", "output")
        }
        block |= {f"att.time_mix_{letter}": values(D) for letter in "rkv"}
        block |= {"att.time_decay": -np.exp(values(D)), "att.time_first": values(D)}
        if version == 5:
            del block["att.time_first"]
            heads = (D // HEAD, HEAD, 1)
            block |= {
                "att.time_decay": np.exp(-np.exp(values(*heads))),
                "att.time_faaaa": values(*heads),
            }
            block |= {"att.gate.weight": values(D, D), "att.time_mix_g": values(D)}
            block |= {"att.ln_x.weight": values(D), "att.ln_x.bias": values(D)}
        block |= {
            "ffn.time_mix_k": values(D),
            "ffn.time_mix_r": values(D),
            "ffn.receptance.weight": values(D, D),
        }
        block |= {"ffn.key.weight": values(WIDTH, D), "ffn.value.weight": values(D, WIDTH)}
        actual |= {f"blocks.{i}.{name}": tensor for name, tensor in block.items()}
    return actual | {
        "ln_out.weight": values(D),
        "ln_out.bias": values(D),
        "head.weight": values(VOCAB, D),
    }


def write(
    path: Path,
    actual: dict[str, np.ndarray],
    *,
    num_layers: int = 2,
    header: tuple[int, ...] = (),
) -> Path:
    content = [struct.pack("<IIiiiI", *(header or (0x67676D66, 101, VOCAB, D, num_layers, 0)))]
    for name, tensor in actual.items():
        shape = tensor.shape[::-1]
        kind = 1 if tensor.dtype == np.float16 else 0
        content.append(
            struct.pack(f"<iii{len(shape)}i", len(shape), len(name), kind, *shape)
            + name.encode()
            + tensor.tobytes(),
        )
    path.write_bytes(b"".join(content))
    return path


@pytest.mark.parametrize("version", [4, 5])
def test_every_tensor_has_its_place(tmp_path, version):
    actual = tensors(version)
    model = load(write(tmp_path / "model.bin", actual))
    assert sum(parameter.numel() for parameter in model.parameters()) == sum(
        tensor.size for tensor in actual.values()
    )
    mixer, theirs = model.blocks[1].mixer, "blocks.1.att."
    assert torch.equal(mixer.out_proj.weight, torch.from_numpy(actual[f"{theirs}output.weight"]))
    for block, number in ((model.blocks[0], 0), (model.blocks[1], 1)):
        for ours, theirs_name in PLACES.items():
            assert torch.equal(
                block.get_parameter(ours),
                torch.from_numpy(actual[f"blocks.{number}.{theirs_name}"]),
            ), ours
    decay = torch.exp(-torch.exp(mixer.time_decay.detach()))
    wanted = (
        actual[f"{theirs}time_decay"][:, :, 0]
        if version == 5
        else np.exp(actual[f"{theirs}time_decay"])
    )
    torch.testing.assert_close(decay, torch.from_numpy(wanted), rtol=1e-6, atol=0)
    assert model(torch.tensor([[1, 2, 3]])).isfinite().all()


def test_half_precision_matrices_are_read(tmp_path):
    actual = tensors()
    half = {
        name: tensor.astype(np.float16) if tensor.ndim == 2 else tensor
        for name, tensor in actual.items()
    }
    weights = read_rwkv_file(write(tmp_path / "half.bin", half))[1]
    assert all(tensor.dtype == torch.float32 for tensor in weights.values())
    assert torch.equal(
        weights["head.weight"],
        torch.from_numpy(half["head.weight"].astype(np.float32)),
    )


def test_decays_of_nought_and_one_stay_finite(tmp_path):
    actual = tensors()
    actual["blocks.0.att.time_decay"][0] = 0.0
    actual["blocks.0.att.time_decay"][1] = 1.0
    model = load(write(tmp_path / "model.bin", actual))
    assert model.blocks[0].mixer.time_decay[0].isfinite().all(), (
        "the double logarithm of a decay of nought"
    )
    loss = model(torch.tensor([[1, 2, 3, 4, 5]])).square().mean()
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name


def broken(kind: str) -> tuple[dict[str, np.ndarray], dict[str, object]]:
    actual = tensors()
    if kind == "missing":
        del actual["blocks.1.ln2.bias"]
    if kind == "left over":
        actual["blocks.2.ln1.weight"] = actual["ln_out.weight"]
    if kind == "shape":
        actual["blocks.1.att.key.weight"] = actual["blocks.1.att.key.weight"][:4]
    if kind == "decay":
        actual["blocks.1.att.time_decay"][0] = 1.5
    if kind == "5.1":
        actual = {name: tensor for name, tensor in actual.items() if "gate" not in name}
    if kind == "6":
        actual["blocks.0.att.time_maa_x"] = actual["ln_out.weight"]
    headers = {
        "magic": (1, 101, VOCAB, D, 2, 0),
        "quantised": (0x67676D66, 101, VOCAB, D, 2, 7),
        "layers": (0x67676D66, 101, VOCAB, D, 1 << 30, 0),
        "width": (0x67676D66, 101, VOCAB, 1 << 30, 2, 0),
    }
    return actual, {"header": headers.get(kind, ())}


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("missing", "Missing key.*blocks.1.mlp_norm.bias"),
        ("left over", "Unexpected key.*blocks.2.mixer_norm.weight"),
        ("shape", r"size mismatch for blocks.1.mixer.key.weight"),
        ("decay", "not between 0 and 1"),
        ("5.1", "RWKV-5.1"),
        ("6", "RWKV-6"),
        ("magic", "is not a model of rwkv.cpp"),
        ("quantised", "type 7"),
        ("layers", "1,001 layers"),
        ("width", "more than fits anywhere"),
    ],
)
def test_a_file_that_is_wrong_is_one_line(tmp_path, kind, said):
    actual, options = broken(kind)
    path = write(tmp_path / "model.bin", actual, **options)
    with pytest.raises(UserError, match=said) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_cut_anywhere_is_one_line(tmp_path):
    at_once = write(tmp_path / "model.bin", tensors(num_layers=1), num_layers=1).read_bytes()
    cut = tmp_path / "cut.bin"
    for length in [0, 3, 23, 24, 25, 36, 40, 44, 60, len(at_once) // 2, len(at_once) - 1]:
        cut.write_bytes(at_once[:length])
        with pytest.raises(UserError, match=r"cut\.bin"):
            read_rwkv_file(cut)


def test_sizes_are_checked_before_memory_is_taken(tmp_path):
    header = struct.pack("<IIiiiI", 0x67676D66, 101, VOCAB, D, 2, 0)
    path = tmp_path / "huge.bin"
    for dimensions, length in [((1 << 30, 1 << 30, 1 << 30), 10), ((-1, 8), 10), ((8,), 1 << 30)]:
        path.write_bytes(
            header
            + struct.pack(f"<iii{len(dimensions)}i", len(dimensions), length, 0, *dimensions)
            + b"emb.weight",
        )
        with pytest.raises(UserError, match="cannot be read"):
            read_rwkv_file(path)


def test_a_file_is_recognised_by_its_beginning(tmp_path):
    assert is_rwkv_file(write(tmp_path / "model.bin", {}))
    (tmp_path / "other.bin").write_bytes(b"PK\x03\x04")
    assert not is_rwkv_file(tmp_path / "other.bin")
    assert not is_rwkv_file(tmp_path / "absent.bin")
    with pytest.raises(UserError, match=r"absent\.bin: cannot be read"):
        read_rwkv_file(tmp_path / "absent.bin")
