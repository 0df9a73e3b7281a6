"""Code that a checkpoint's files name: none is fetched, imported or run unasked, and one line says
where it is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.models.test_gguf import NUM_HEADS, NUM_KV_HEADS, write_gguf

OWNERS = "owner/name"

KERNELS = """
import pathlib
traces = pathlib.Path(__file__).parent.parent / "traces"
with traces.open("a") as file:
    file.write("imported\\n")


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def called(*args, **options):
        with traces.open("a") as file:
            file.write(f"{name} {args}\\n")
        return (lambda target: target) if name.startswith("use_kernel") else called

    return called
"""
"""A package `kernels` that notes in a file that it was imported, and which of its functions were
called."""

TRACING = "import pathlib\n(pathlib.Path({traces!r})).open('a').write('ran ' + __file__ + '\\n')\n"
"""A module that notes that it ran."""

IMPORTED = """
import pathlib, sys
import kernels, transformers.modeling_utils
from transformers.utils import is_kernels_available
traces = pathlib.Path(kernels.__file__).parent.parent / "traces"
assert is_kernels_available() and "imported" in traces.read_text()
traces.write_text("")
from recallkit.models.loading import load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
for path in sys.argv[1:]:
    load_model(ModelPlan(ModelSpec(path), 4096, device="cpu"))
sys.exit(traces.read_text().count("get_kernel"))
"""
"""A program that has the package before it loads models by Python."""

CHILD = """
import contextlib, io, json, sys
from recallkit import cli
for words in json.load(open(sys.argv[1])):
    error = io.StringIO()
    with contextlib.redirect_stderr(error), contextlib.redirect_stdout(io.StringIO()):
        try:
            cli.run(words)
        except SystemExit as end:
            status = end.code
    print(json.dumps([words, status, error.getvalue()]), file=sys.__stdout__, flush=True)
"""

KERNEL_VALUES = {
    "a name": OWNERS,
    "a revision and a function": f"{OWNERS}@v1:attend",
    "paged": f"paged|{OWNERS}",
    "kernels-community": "kernels-community/flash-attn2",
    "by part": {"": "eager", "text_config": OWNERS},
}
IMPLEMENTATIONS = (
    "_attn_implementation",
    "attn_implementation",
    "_experts_implementation",
    "experts_implementation",
)
REFUSED: dict[str, dict[str, Any]] = {
    **{
        f"{key}: {kind}": {key: value}
        for key in IMPLEMENTATIONS
        for kind, value in KERNEL_VALUES.items()
    },
    "in text_config": {"text_config": {"_attn_implementation": OWNERS}},
    "in a part of a part": {"vision_config": {"backbone_config": {"attn_implementation": OWNERS}}},
    "in a list": {"parts": [{"_attn_implementation": OWNERS}]},
    "by layer": {"per_layer_config": {"0": {"_attn_implementation": OWNERS}}},
    "internal": {"_attn_implementation_internal": OWNERS},
    "flash attention": {"_attn_implementation": "flash_attention_2"},
    "flash attention 3": {"text_config": {"attn_implementation": "paged|flash_attention_3"}},
    "kernel_config": {"kernel_config": {"kernel_mapping": {"RMSNorm": f"{OWNERS}:RMSNorm"}}},
    "mlp_kernels": {"mlp_kernels": [OWNERS]},
    "hub_kernels": {"hub_kernels": OWNERS},
    "a format": {
        "quantization_config": {"quant_method": "compressed-tensors", "format": "evil.py:Packed"}
    },
    "a format inside": {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "sparsity_config": {"format": "/x/evil.py:Packed"},
        }
    },
    "a transform": {
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "transform_config": {"config_groups": {"u": {"type": "evil.py:T"}}},
        }
    },
}
"""Entries of config.json that name code beside the repository's own: each is refused in one
line."""

NOT_RUN: dict[str, dict[str, Any]] = {
    "use_kernels": {"use_kernels": True},
    "its own code": {"auto_map": {"AutoConfig": "own.Config", "AutoModelForCausalLM": "own.Model"}},
    "another's code": {
        "auto_map": {
            "AutoConfig": f"{OWNERS}--own.Config",
            "AutoModelForCausalLM": f"{OWNERS}--own.Model",
        }
    },
    "a tokenizer's class": {"tokenizer_class": f"{OWNERS}--own.Tokenizer"},
    "mxfp4": {"quantization_config": {"quant_method": "mxfp4"}},
    "fp8": {"quantization_config": {"quant_method": "fp8"}},
    "eetq": {"quantization_config": {"quant_method": "eetq"}},
    "a dtype": {"dtype": "load"},
    "a dtype of old": {"torch_dtype": "__loader__"},
    "no dtype of bitsandbytes": {
        "quantization_config": {
            "quant_method": "bitsandbytes",
            "load_in_4bit": True,
            "bnb_4bit_compute_dtype": "load",
        }
    },
    "custom_generate": {"custom_generate": OWNERS, "use_cache": True},
    "a fusion": {"fusion_config": {OWNERS: True}},
    "a plan": {
        "base_model_tp_plan": {"layers.*": f"{OWNERS}:shard"},
        "distributed_config": {"tp_plan": OWNERS},
    },
}
"""Entries that the checkpoint is read without, or refused for: nothing runs, whichever."""

ADAPTERS: dict[str, dict[str, Any]] = {
    "a library": {"auto_mapping": {"base_model_class": "Model", "parent_library": "own"}},
    "megatron": {"megatron_config": {"a": 1}, "megatron_core": "own"},
    "a shadow": {"peft_type": "SHADOW", "shadow_model": OWNERS},
    "adapters": {"peft_type": "XLORA", "adapters": {"0": OWNERS}, "hidden_size": 48},
    "a prompt's tokenizer": {
        "peft_type": "PROMPT_TUNING",
        "prompt_tuning_init": "TEXT",
        "prompt_tuning_init_text": "a",
        "num_virtual_tokens": 1,
        "tokenizer_name_or_path": ".",
        "tokenizer_kwargs": {"trust_remote_code": True},
    },
}


TOKENIZERS: dict[str, dict[str, Any]] = {
    "a list": {
        "auto_map": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
        "tokenizer_class": "BertTokenizer",
    },
    "of old": {"auto_map": ["own.Tokenizer", None]},
    "another's": {
        "auto_map": {"AutoTokenizer": [f"{OWNERS}--own.Tokenizer", None]},
        "tokenizer_class": f"{OWNERS}--own.Tokenizer",
    },
    "its class": {"tokenizer_class": "own.Tokenizer"},
}
"""Entries of tokenizer_config.json beside a vocabulary that transformers reads."""


def change(folder: Path, name: str, **entries: Any) -> None:
    path = folder / name
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**before, **entries}))


@pytest.fixture(scope="module")
def scored(tmp_path_factory, tiny_model, small_slices, home) -> SimpleNamespace:
    """How `score` and `gap` end for each of these checkpoints, in a process with a package
    `kernels`, and what ran meanwhile."""
    folder = tmp_path_factory.mktemp("named")
    site = folder / "site"
    for package in ("kernels", "kernels-0.18.2.dist-info"):
        (site / package).mkdir(parents=True)
    traces = site / "traces"
    (site / "kernels/__init__.py").write_text(KERNELS)
    (site / "kernels-0.18.2.dist-info/METADATA").write_text(
        "Metadata-Version: 2.1\nName: kernels\nVersion: 0.18.2\n"
    )
    (site / "own.py").write_text(TRACING.format(traces=str(traces)))
    models: dict[str, Path] = {}
    for name, entries in {**REFUSED, **NOT_RUN}.items():
        models[name] = copy(tiny_model("llama"), folder / str(len(models)), traces)
        change(models[name], "config.json", **entries)
    models["GGUF"] = save_gguf(folder / "x.gguf")
    models["rwkv"] = copy(tiny_model("rwkv"), folder / "rwkv", traces)
    for name, entries in ADAPTERS.items():
        models[name] = folder / f"adapter-{len(models)}"
        save_adapter(tiny_model("llama"), models[name])
        change(models[name], "adapter_config.json", **entries)
    commands = {
        name: ["score", str(path), "--slices", str(small_slices), "--force"]
        for name, path in models.items()
    }
    first = str(models["_attn_implementation: a name"])
    commands["gap"] = [
        "gap",
        str(tiny_model("llama")),
        first,
        "--slices",
        str(small_slices),
        "-o",
        str(folder / "gap"),
    ]
    commands["mqar"] = ["mqar", first, "--samples", "2", "-o", str(folder / "mqar")]
    commands["trusted"] = ["score", first, "--slices", str(small_slices), "--trust-remote-code"]
    for name, entries in TOKENIZERS.items():
        place = copy(tiny_model("llama"), folder / f"tokenizer {name}", traces)
        (place / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\nb\n")
        (place / "tokenizer_config.json").write_text(json.dumps(entries))
        change(place, "config.json", **NOT_RUN["its own code"], _attn_implementation=OWNERS)
        (folder / "text.jsonl").write_text(json.dumps({"text": "a b a b"}) + "\n")
        commands[f"tokenizer {name}"] = [
            "slice",
            str(folder / "text.jsonl"),
            "--tokenizer",
            str(place),
            "-o",
            str(place / "slices"),
        ]
    (folder / "commands.json").write_text(json.dumps(list(commands.values())))
    (folder / "child.py").write_text(CHILD)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    words = [sys.executable, str(folder / "child.py"), str(folder / "commands.json")]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=600, env=environment, cwd=folder
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(commands), done.stderr
    ends = {
        name: SimpleNamespace(status=status, line=line)
        for name, (_, status, line) in zip(commands, lines, strict=True)
    }
    found = traces.read_text() if traces.exists() else ""
    (folder / "imported.py").write_text(IMPORTED)
    words = [
        sys.executable,
        str(folder / "imported.py"),
        str(models["rwkv"]),
        str(models["fp8"]),
        str(models["GGUF"]),
    ]
    imported = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=200, env=environment, cwd=folder
    )
    return SimpleNamespace(ends=ends, models=models, imported=imported, traces=found)


def copy(model: Path, place: Path, traces: Path) -> Path:
    """The model with code in its folder, which its configurations name."""
    shutil.copytree(model, place)
    for name in ("own.py", "evil.py", "custom_generate/generate.py"):
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(TRACING.format(traces=str(traces)))
    named = {
        "auto_map": {"AutoTokenizer": ["own.Tokenizer", "own.Tokenizer"]},
        "tokenizer_class": "own.Tokenizer",
    }
    change(place, "tokenizer_config.json", **named)
    change(place, "generation_config.json", custom_generate=OWNERS)
    return place


def save_adapter(base: Path, place: Path) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        config = LoraConfig(r=2, target_modules=["q_proj"])
        get_peft_model(AutoModelForCausalLM.from_pretrained(base), config).save_pretrained(place)


def save_gguf(path: Path) -> Path:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"vocab_size": 4096, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1}
    heads = {"num_attention_heads": NUM_HEADS, "num_key_value_heads": NUM_KV_HEADS}
    write_gguf(path, LlamaForCausalLM(LlamaConfig(**sizes, **heads)), precision="Q8_0")
    return path


def test_nothing_ran_and_no_kernel_was_fetched_or_imported(scored):
    assert scored.traces == ""


@pytest.mark.parametrize("name", REFUSED)
def test_each_is_refused_in_one_line_that_names_it(scored, name):
    end = scored.ends[name]
    assert end.status == 1, end.line
    [line] = [line for line in end.line.splitlines() if line.startswith("recallkit: ")]
    assert str(scored.models[name]) in line
    assert "in its config.json is " in line
    assert next(iter(REFUSED[name])) in line
    assert "--trust-remote-code" in line


@pytest.mark.parametrize(
    "name", [*NOT_RUN, "rwkv", "GGUF", *(f"tokenizer {name}" for name in TOKENIZERS)]
)
def test_others_are_read_without_it_or_refused_in_one_line(scored, name):
    end = scored.ends[name]
    assert end.status in (0, 1), end.line
    assert all(line.startswith("recallkit: ") for line in end.line.splitlines())


@pytest.mark.parametrize("name", ADAPTERS)
def test_adapters_import_and_fetch_nothing(scored, name):
    end = scored.ends[name]
    assert end.status == (0 if name == "a library" else 1), end.line


@pytest.mark.parametrize("name", ["gap", "mqar"])
def test_other_commands_refuse_it_too(scored, name):
    end = scored.ends[name]
    assert end.status == 1
    assert "_attn_implementation in its config.json is 'owner/name'" in end.line


@pytest.mark.parametrize(
    ("name", "reason"),
    [("rwkv", "model_type rwkv"), ("fp8", "quant_method fp8"), ("GGUF", "GGUF file")],
)
def test_what_takes_kernels_by_default_is_scored_without_and_says_so(scored, name, reason):
    end = scored.ends[name]
    assert end.status == 0, end.line
    assert f"in place of kernels from the hub, which are never run unasked ({reason})" in end.line


def test_a_program_that_has_imported_the_package_gets_no_kernel_either(scored):
    assert scored.imported.returncode == 0, scored.imported.stderr
    assert "in place of kernels from the hub" in scored.imported.stderr


def test_allowed_it_is_named_and_no_longer_refused(scored):
    line = scored.ends["trusted"].line
    assert (
        f"--trust-remote-code runs Python code that comes with this checkpoint ({OWNERS})" in line
    )
    assert "unasked" not in line
