"""Every command and every call in README and docs: taken by the command line and by the signatures, and run on little text."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
import shlex
import shutil
import tomllib
from pathlib import Path

import click
import pytest
import typer

import recallkit
from recallkit import cli
from recallkit.commands.adapter import DECLARED
from recallkit.errors import UserError
from recallkit.models.spec import list_models
from tests.conftest import ROOT
from tests.documented import PROGRAMS, blocks, documents, inline, words

pytestmark = pytest.mark.ci

BLOCKS = [block for path in documents() for block in blocks(path)]
GROUP = typer.main.get_command(cli.app)
LINES = [(block, line) for block in BLOCKS if block.kind == "shell" for line in block.commands]
OWN = {flag for parameter in GROUP.params for flag in parameter.opts}
"""Options of the program itself, before a command's name."""


def accepted(given: list[str]) -> None:
    """Parses words as the command line does, and runs nothing. Raises for what it would refuse."""
    given = [word.replace("$SLURM_ARRAY_TASK_ID", "1") for word in given if word not in OWN]
    if not given:
        return
    context = GROUP.commands[given[0]].make_context(given[0], given[1:])
    if given[0] in ("score", "gap", "intervene", "ablate", "eval-recall", "mqar"):
        named = [context.params.get(name) or () for name in ("reference", "model", "models")]
        list_models(*(each for models in named for each in ([models] if isinstance(models, str) else models)))


def test_every_command_line_is_accepted():
    refused = []
    for block, line in LINES:
        try:
            accepted(words(line))
        except (click.ClickException, UserError) as error:
            refused.append(f"{block.document}: {line}: {error}")
    assert not refused, "\n".join(refused)


def test_blocks_of_all_kinds_are_found():
    """The README's, and that no command hides in what looks like an output."""
    assert [line for block, line in LINES if block.document == "README.md"][:2] != []
    assert {block.kind for block in BLOCKS} == {"shell", "python", "printed"}
    for block in BLOCKS:
        if block.kind == "printed":
            lines = [line for line in block.text.splitlines() if re.match(rf"(\$ )?recallkit ({'|'.join(GROUP.commands)})\b", line)]
            assert not lines, f"{block.document}:{block.line}: commands beside other text: {lines}"


def test_other_programs_lines_name_what_is_there():
    """Targets of make, extras of pip, scripts and their options."""
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"])
    wrong = []
    for block, line in LINES:
        program = PROGRAMS.match(line)["program"]
        said = shlex.split(line)
        if program == "make":
            wrong += [(block.document, name) for name in said[1:] if name not in targets]
        if program == "pip":
            asked = {name for names in re.findall(r"\[([\w,]+)\]", line) for name in names.split(",")}
            wrong += [(block.document, name) for name in asked - extras]
        scripts = [word for word in said if re.fullmatch(r"(?:scripts|tests|examples)/[\w/]+\.(?:py|sh)", word)]
        wrong += [(block.document, name) for name in scripts if not (ROOT / name).is_file()]
        if scripts:  # an example's options may be in the file that it shares with another
            text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / scripts[0]).parent.glob("*.py"))
            wrong += [(block.document, line, word) for word in said if word.startswith("--") and f'"{word}"' not in text]
    assert not wrong


OF_OTHERS = '"--append-eod" "--torch-backend"'
"""Options of other tools that documents name: Megatron-LM's, uv's."""


def options(name: str) -> set[str]:
    return {flag for parameter in GROUP.commands[name].params for flag in parameter.opts} | {"--help"} | OWN


def test_options_in_the_text_exist():
    """Of `recallkit NAME ...` and of `NAME --option` those of the command; an option by itself is one of any command, or of a script."""
    every = set().union(*map(options, GROUP.commands))
    paths = [path for folder in ("examples", "tests/benchmarks") for path in (ROOT / folder).glob("*.py")]
    scripts = "".join(path.read_text(encoding="utf-8") for path in paths)
    wrong = []
    told = [path for path in documents() if path.name not in ("CHANGELOG.md", "log.md")]  # those tell of what was
    spans = [(path.name, code) for path in told for code in inline(path)]
    for document, code in spans:
        said = re.sub(r"^recallkit ", "", code).split()
        flags = [word.partition("=")[0] for word in said if re.fullmatch(r"--?[a-z][\w-]*(?:=.*)?", word)]
        if said and said[0] in GROUP.commands:
            wrong += [(document, code, flag) for flag in flags if flag not in options(said[0])]
        elif code.startswith("-"):
            wrong += [(document, code, flag) for flag in flags[:1] if flag not in every and f'"{flag}"' not in scripts + OF_OTHERS]
    assert not wrong


# ----------------------------------------------------------------------------------------------------------------- Python


def test_python_calls_what_is_there():
    """Imports are found, and arguments of the package's functions are in their signatures."""
    nodes = [node for block in BLOCKS if block.kind == "python" for node in ast.walk(ast.parse(block.text))]
    assert len(nodes) > 100
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and node.module.startswith("recallkit"):
            assert all(hasattr(importlib.import_module(node.module), alias.name) for alias in node.names)
        if isinstance(node, ast.Call) and re.match(r"recallkit\.\w+$", ast.unparse(node.func)):
            function = getattr(recallkit, node.func.attr)
            named = {each.arg: literal(each.value) for each in node.keywords}
            bound = inspect.signature(function).bind_partial(*map(literal, node.args), **named)
            command = next((each for each in DECLARED.values() if inspect.unwrap(function) is each.function), None)
            for name, value in bound.arguments.items():
                if command and name in command.parameters and value is not None:
                    command.parameters[name].take(value)


def literal(node: ast.expr) -> object:
    """What an expression says, None where that is not known before it is run."""
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


# --------------------------------------------------------------------------------------------------------------- for real

NOT_RUN = {
    "--tasks swde,fda,squad": "reads data sets of the hub; tests/recall runs these tasks on local rows",
    "s3://": "reads from elsewhere: tests/text/test_remote.py",
    "hf://": "reads from elsewhere: tests/text/test_remote.py",
    "--device cuda": "needs a GPU",
    "openai:": "asks a server: tests/models/test_server.py",
    "--engine ray": "needs a Ray cluster",
    "--watch": "goes on until a run ends: tests/tracking/test_run.py",
    "my_model.py": "a file of the reader's: tests/models/test_user.py",
    "path/to/adapter": "tests/models/test_adapters.py",
    "byte-level-mamba": "tests/scoring has models with tokenizers of their own",
    "recallkit report  ": "the built-in comparison, of two minutes: make demo",
}
"""Parts of command lines that are parsed and not run, with the reason."""

SMALLER = {
    r"--limit-tokens \S+": "--limit-tokens 2k",
    r"--samples \d+": "--samples 4",
    r"--workers \d+": "--workers 2",
    r"--limit 100": "--limit 2",
    r"/shared/slices|\bDIR\b": "slices",
    r"\$SLURM_ARRAY_TASK_ID": "1",
    r"\$RECALLKIT_TEST_DATA/(?:corpus|tokenizers)/": "",
    r"train-0\*": "train/*",
    r"--max-rate 125": "--max-count 5",
    r"\bMODEL\b": "zoo:attention",
    r"gap A B C": "gap zoo:attention zoo:mamba zoo:hyena",
    r"SmolLM2-135M-Instruct(?: |$)": "SmolLM2.gguf --mixers 3 ",
    r"passages.jsonl|valid30.jsonl": "valid.jsonl --limit-tokens 2k",
    r"score state-spaces/mamba-130m-hf": "score path/to/mamba",
}
"""What is run in the place of what a document says: less text, and the reader's own names."""

BY_DEFAULT = {
    **{name: ["--slices", "small"] for name in ("score", "gap", "intervene", "ablate")},
    "mqar": ["--samples", "2", "--length", "128", "--pairs", "4"],
    "train-mqar": ["--steps", "2", "--batch", "4", "--examples", "64", "--test-examples", "8", "--learning-rates", "0.01"],
}
"""Options for what a line leaves to defaults, which are of minutes: `small` has 2,000 tokens of the built-in text."""


def in_small(line: str) -> list[str]:
    for said, smaller in SMALLER.items():
        line = re.sub(said, smaller, line)
    given = words(line)
    more = BY_DEFAULT.get(given[0], [])
    pairs = zip(more[::2], more[1::2], strict=True)
    return [*given, *(word for option, value in pairs if option not in given for word in (option, value))]


def reason_not_to_run(line: str) -> str | None:
    if words(line)[0] in OWN - {"--log-json"}:
        return "the program's own option: tests/commands/test_cli.py"
    return next((reason for part, reason in NOT_RUN.items() if part in line + "  "), None)


@pytest.fixture(scope="module")
def workspace(tmp_path_factory, small_slices, home):
    """A folder in which the files that documents name are there: made-up text, a tokenizer, counts, slices."""
    import zstandard

    folder = tmp_path_factory.mktemp("workspace")
    (folder / "train").mkdir()
    for name, path in (("train", "train/0.jsonl.zst"), ("valid", "valid.jsonl.zst")):
        (folder / path).write_bytes(zstandard.compress((small_slices.parent / f"{name}.jsonl").read_bytes()))
    shutil.copy(small_slices.parent / "valid.jsonl", folder)
    for name in ("gpt2.json", "neox.json"):
        shutil.copy(ROOT / "recallkit/data/tokenizer.json", folder / name)
    shutil.copy(small_slices.parent / "counts.duckdb", folder)
    shutil.copytree(small_slices, folder / "slices")
    return folder


WRITES = {
    "count": "counts.duckdb",
    "slice": "slices",
    "profile": "profile",
    "mqar": "mqar",
    "eval-recall": "evals",
    "train-mqar": "train-mqar",
}
"""Where commands write by default. What is there already is removed: lines that write to one place are alternatives."""


def remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def run_block(block, workspace, folder, run, monkeypatch) -> list[str]:
    """Runs a block's lines in a copy of the workspace. Returns those that failed, with what they said."""
    shutil.copytree(workspace, folder, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(folder)
    lines = [in_small(line) for line in block.commands if words(line) and not reason_not_to_run(line)]
    if any(given[0] == "gap" for given in lines):
        shutil.rmtree("slices/gap", ignore_errors=True)
    if "SmolLM2" in block.text and "--counts" in block.text and lines[0][0] != "count":
        lines.insert(0, ["count", "train/0.jsonl.zst", "--tokenizer", "SmolLM2.gguf"])
    failed = []
    for given in lines:
        made = Path(given[given.index("-o") + 1] if "-o" in given else WRITES.get(given[0], "none"))
        if given[0] in WRITES:
            remove(made)
        done = run(*given)
        failed += [f"{shlex.join(given)}\n{done.stderr}"] * (done.returncode != 0)
    return failed


def holding(*parts: str) -> list[object]:
    """Blocks that contain commands of ours which can be run, and contain one of `parts`."""
    named = [block for block in BLOCKS if block.kind == "shell" and any(part in block.text for part in parts)]
    runnable = [block for block in named if any(words(line) and not reason_not_to_run(line) for line in block.commands)]
    return [pytest.param(block, id=f"{block.document}:{block.line}") for block in runnable]


@pytest.mark.parametrize("block", holding("slice valid.jsonl.zst     --tokenizer", "zoology:1"))
def test_commands_without_models_run(block, workspace, run, tmp_path, monkeypatch):
    assert run_block(block, workspace, tmp_path, run, monkeypatch) == []


@pytest.fixture(scope="module")
def whole_workspace(workspace, tiny_model, smollm2, run):
    """The workspace with models under the names of documents, results to show, token ids, bases."""
    import gzip

    import numpy as np
    import polars as pl
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    for name, family in {
        "path/to/attention": "llama",
        "path/to/mamba": "mamba",
        "path/to/model": "llama",
        "path/to/checkpoint": "llama",
    }.items():
        shutil.copytree(tiny_model(family), workspace / name)
    for number, family in ((7, "llama"), (9, "mamba")):
        shutil.copytree(tiny_model(family), workspace / f"runs/{number}/hf")
    for step, run_of in itertools.product((100, 200), ("run", "track")):
        shutil.copytree(tiny_model("llama"), workspace / run_of / f"checkpoint-{step}")
    torch.manual_seed(1)
    shape = {"vocab_size": 4096, "hidden_size": 48, "intermediate_size": 96, "num_hidden_layers": 6, "num_attention_heads": 4}
    kinds = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8, "num_experts": 2, "use_mamba_kernels": False}
    config = AutoConfig.for_model("jamba", **shape, **kinds, num_key_value_heads=2, pad_token_id=0, bos_token_id=0, eos_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(workspace / "path/to/jamba")
    for name in ("SmolLM2.gguf", "SmolLM2-135M-Instruct.gguf", "SmolLM2-135M-Instruct.Q4_1.gguf"):
        (workspace / name).symlink_to(smollm2)
    (workspace / "examples").symlink_to(ROOT / "examples")
    ids = np.random.default_rng(1).integers(1, 4000, (8, 300))
    pl.DataFrame({"input_ids": ids.tolist()}).write_parquet(workspace / "valid.parquet")
    ids.astype(np.uint16).tofile(workspace / "train_0.bin")
    ids.astype(np.uint32).tofile(workspace / "wide.bin")
    bases = ">one\n" + "".join("ACGT"[n % 4] for n in ids.flat) + "\n"
    (workspace / "held_out.fa").write_text(bases)
    (workspace / "hg38.fa.gz").write_bytes(gzip.compress(bases.encode()))
    filing = {"text": "Maker: Fen. Range: 40 m.", "pairs": {"Maker": "Fen", "Range": "40 m"}}
    (workspace / "filings.jsonl").write_text(json.dumps(filing) + "\n")
    shutil.copy(workspace / "train/0.jsonl.zst", workspace / "train/1.jsonl.zst")
    few, counts = ["--limit-tokens", "2k", "--seq-len", 256, "--max-count", 5], ["--counts", workspace / "counts.duckdb"]
    for given in (
        ["slice", "demo:sample", *few, "--counts", recallkit.zoo_counts(), "-o", workspace / "small"],
        ["gap", "control:recall", "control:bigram", "--slices", workspace / "slices", *counts],
        ["eval-recall", "control:copy", "--data", ROOT / "examples/04_recall_rows.jsonl", "-o", workspace / "evals"],
    ):
        done = run(*given)
        assert done.returncode == 0, done.stderr
    shutil.copytree(workspace / "slices/gap", workspace / "results")
    shutil.copytree(workspace / "small", workspace / "track/slices")
    return workspace


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("block", holding("recallkit"))
def test_every_command_runs(block, whole_workspace, run, tmp_path, monkeypatch):
    assert run_block(block, whole_workspace, tmp_path, run, monkeypatch) == []


PYTHON_NOT_RUN = {
    "# my_model.py": "a file of the reader's: tests/models/test_user.py",
    'build("based-360m")': "360M parameters: tests/models/test_describe.py",
}
"""Parts of Python blocks that are not run, with the reason; docs/python.md is, by tests/commands/test_python.py."""


def said_of(block, node: ast.stmt) -> tuple[object, str] | None:
    """What the comment behind an expression begins with, `0.75, 0.25  # ...` up to a colon, if that is a value; and as written."""
    _, _, comment = block.text.splitlines()[node.end_lineno - 1].rpartition("  # ")
    try:
        return ast.literal_eval(comment.partition(":")[0]), comment.partition(":")[0]
    except (SyntaxError, ValueError):
        return None


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, id=f"{block.document}:{block.line}")
        for block in BLOCKS
        if block.kind == "python" and block.document != "docs/python.md" and not any(part in block.text for part in PYTHON_NOT_RUN)
    ],
)
def test_python_runs_and_gives_what_it_says(block, whole_workspace, tmp_path, monkeypatch):
    import datasets
    import tokenizers
    import torch
    from transformers import AutoModelForCausalLM

    shutil.copytree(whole_workspace, tmp_path, symlinks=True, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    remove(Path("track"))
    datasets.DatasetDict({"train": datasets.Dataset.from_dict({"text": ["a text", "another"]})}).save_to_disk("data")
    names = {"recallkit": recallkit, "torch": torch, "datasets": datasets, "step": 0, "batches": [0]} | dict.fromkeys(
        "qkv", torch.randn(1, 2, 8, 16)
    )
    names |= {"model": AutoModelForCausalLM.from_pretrained("path/to/attention"), "tokenizer": tokenizers.Tokenizer.from_file("gpt2.json")}
    for node in ast.parse(block.text).body:
        if made := re.search(r"\bout='([\w.]+)", ast.unparse(node)):
            remove(Path(made[1]))
        said = said_of(block, node)
        if said is None or not isinstance(node, ast.Expr):
            exec(compile(ast.Module([node], []), block.document, "exec"), names)
            continue
        found = eval(compile(ast.Expression(node.value), block.document, "eval"), names)
        digits = len(re.search(r"\.?(\d*)$", said[1].strip())[1])
        flat = [torch.as_tensor(each).double().flatten() for each in (found if isinstance(found, tuple) else [found])]
        assert torch.cat(flat).tolist() == pytest.approx(torch.tensor(said[0]).double().flatten().tolist(), abs=0.51 * 10.0**-digits)
