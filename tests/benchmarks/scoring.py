"""Scores models with recallkit, by their bare forward, with a plain log-softmax and with lm-eval, in turn: rates, targets.

    python tests/benchmarks/scoring.py
    python tests/benchmarks/scoring.py --models llama --threads 2 --repeats 7
    python tests/benchmarks/scoring.py --device cuda --dtype bfloat16 --models llama-1b llama-3b mamba-1b

Models have random weights. Text is what every Python holds: its standard library, cut into sequences of equal
length, and whole documents, topics of its language reference.

recallkit has a model and all others have another, loaded once; they take turns. In each round every method runs twice,
and the second run is timed: ratios are those within a round, their median and range. With one thread on CPU seconds are the
processor's, which other work on the machine changes less; else they are those of the wall.
"bare forward" is `model(ids, use_cache=False).logits` of a model that transformers loaded, and nothing else; "naive"
adds a log-softmax in float32, the target's log-probability and the argmax. "texts" are decoded sequences: both we and
lm-eval's `loglikelihood_rolling` tokenise them, read each in one window after an end token, and find the same numbers.
"documents" are of any length: we join and cut them, as `recallkit slice` does; lm-eval reads each from its beginning, and
its last tokens with a whole window before them. Memory is what a run takes at its peak beyond what the process held; on a
GPU, beyond what the models take there.

On a GPU the rate is also given as a share of that of a large matrix product in the same dtype, measured in the same
process: two operations a weight and token. With --device cuda nothing is imported but torch, triton, numpy,
transformers, tokenizers, safetensors, recallkit's models and kernels, and lm-eval where it is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib.util
import io
import itertools
import json
import os
import statistics
import sys
import sysconfig
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness
from tests.benchmarks.harness import verdict

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    import torch

OURS, BARE, NAIVE = "recallkit", "bare forward", "naive"
TEXTS, DOCUMENTS = "texts", "documents"
DOCUMENT_SHARE = 2
"""Documents hold at most this many times the tokens of the sequences."""
LEAST_OF_BARE = 0.97
LEAST_OF_LM_EVAL, REACH_OF_LM_EVAL = 1.5, 2.0
MATRIX_SIZE = 8192


# --------------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Subject:
    """A model with random weights: what transformers is told of it, and how much of it is a fair load on CPU."""

    config: dict[str, Any]
    tokens: int = 2048
    seq_len: int = 512


def _tiny(model_type: str, **more: Any) -> Subject:
    small = {"vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 2, "bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return Subject({"model_type": model_type, **small, **more})


def _large(model_type: str, **more: Any) -> Subject:
    return Subject({"model_type": model_type, "tie_word_embeddings": True, **more}, tokens=16384, seq_len=2048)


_ATTENTION = {"num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 2048}
_LLAMA = {"vocab_size": 128256, "num_key_value_heads": 8, "intermediate_size": 8192, "max_position_embeddings": 8192}

SUBJECTS: dict[str, Subject] = {
    "llama": _tiny("llama", **_ATTENTION, num_key_value_heads=4),
    "gpt_neox": _tiny("gpt_neox", **_ATTENTION),
    "mamba": _tiny("mamba", state_size=16),
    "mamba2": _tiny("mamba2", state_size=64, num_heads=8, head_dim=64, n_groups=1, chunk_size=128),
    "rwkv": _tiny("rwkv", attention_hidden_size=256, context_length=2048),
    "llama-1b": _large("llama", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, **_LLAMA),
    "llama-3b": _large("llama", hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, **_LLAMA),
    "mamba-1b": _large("mamba", vocab_size=50280, hidden_size=2048, num_hidden_layers=48, state_size=16),
}
GPU_MODELS = ("llama-1b", "llama-3b", "mamba-1b")
CPU_MODELS = tuple(name for name in SUBJECTS if name not in GPU_MODELS)


def write_random_model(subject: Subject, folder: Path, device: str, dtype: torch.dtype) -> Path:
    """A model directory with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**subject.config), dtype=dtype)
    model.save_pretrained(folder)
    return folder


def builtin_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    file = Path(__file__).parents[2] / "recallkit" / "data" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>")


# ----------------------------------------------------------------------------------------------------------------- text


def standard_library() -> Iterator[str]:
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        yield path.read_text(encoding="utf-8", errors="ignore")


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def read_ids(tokenizer: Any, num_ids: int) -> np.ndarray:
    """At least so many ids of the standard library's text."""
    ids: list[int] = []
    for text in itertools.cycle(standard_library()):
        ids += encode(tokenizer, text)
        if len(ids) >= num_ids:
            return np.array(ids)
    raise AssertionError


def texts_of(tokenizer: Any, ids: np.ndarray, seq_len: int) -> list[str]:
    """Text that is no longer than `seq_len` ids, for every so many ids: text that is cut elsewhere may take more of them."""
    texts = []
    for start in range(0, len(ids) - seq_len + 1, seq_len):
        stop = start + seq_len
        text = tokenizer.decode(ids[start:stop].tolist(), clean_up_tokenization_spaces=False)
        while len(encode(tokenizer, text)) > seq_len:
            stop -= 1
            text = tokenizer.decode(ids[start:stop].tolist(), clean_up_tokenization_spaces=False)
        texts.append(text)
    return texts


def documents_of(tokenizer: Any, most_ids: int) -> list[str]:
    """Topics of the language reference in the order of their names, no more ids than that in all."""
    from pydoc_data.topics import topics

    chosen = []
    for _, text in sorted(topics.items()):
        length = len(encode(tokenizer, text))
        if 0 < length <= most_ids:
            chosen.append(text)
            most_ids -= length
    return chosen


# -------------------------------------------------------------------------------------------------------------- methods


@dataclass(frozen=True)
class Load:
    """What a round works on: sequences of equal length, and texts, with the tokenizer that they are read with."""

    ids: np.ndarray
    """(batch, seq_len + 1): as many predictions as `seq_len`, a sequence begins with the last id of the one before."""
    texts: list[str]
    documents: list[str]
    tokenizer: Any

    @property
    def batch(self) -> int:
        return len(self.ids)

    @property
    def seq_len(self) -> int:
        return self.ids.shape[1] - 1

    def ids_of(self, text: str) -> np.ndarray:
        """Behind what lm-eval puts before each text."""
        first = self.tokenizer.bos_token_id
        return np.array([self.tokenizer.eos_token_id if first is None else first, *encode(self.tokenizer, text)], np.uint32)


def read_load(tokenizer: Any, batch: int, seq_len: int) -> Load:
    flat = read_ids(tokenizer, batch * seq_len + 1)
    ids = np.stack([flat[start : start + seq_len + 1] for start in range(0, batch * seq_len, seq_len)])
    return Load(ids, texts_of(tokenizer, flat[:-1], seq_len), documents_of(tokenizer, DOCUMENT_SHARE * batch * seq_len), tokenizer)


def our_methods(load: Load, path: Path, args: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], int]:
    """Ours, by name; and how many sequences recallkit would take at once."""
    from recallkit.models.loading import load_model
    from recallkit.models.plan import ModelPlan
    from recallkit.models.spec import ModelSpec

    scorer: Any = load_model(ModelPlan(ModelSpec(str(path)), 1, device=args.device, dtype=args.dtype))

    def nll(sequences: list[np.ndarray]) -> np.ndarray:
        offsets = np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences])])
        return np.asarray(scorer.score(np.concatenate(sequences).astype(np.uint32), offsets).nll)

    def score_texts() -> np.ndarray:
        """The log-likelihood of each text."""
        sequences = [load.ids_of(text) for text in load.texts]
        ends = np.cumsum([len(sequence) - 1 for sequence in sequences])
        return np.array([-nlls.sum(dtype=np.float64) for nlls in np.split(nll(sequences), ends[:-1])])

    def score_documents() -> np.ndarray:
        """NLLs of all ids but the first of the documents joined: windows share an id, the last may be shorter."""
        joined = np.concatenate([load.ids_of(text) for text in load.documents])
        windows = [joined[start : start + load.seq_len + 1] for start in range(0, len(joined) - 1, load.seq_len)]
        return np.concatenate([nll(windows[first : first + load.batch]) for first in range(0, len(windows), load.batch)])

    methods = {OURS: lambda: nll(list(load.ids)), f"{OURS}, {TEXTS}": score_texts, f"{OURS}, {DOCUMENTS}": score_documents}
    return methods, max(1, scorer.batch_tokens(load.seq_len) // load.seq_len)


def other_methods(load: Load, path: Path, args: argparse.Namespace) -> tuple[dict[str, Callable[[], Any]], Any]:
    """The model as transformers loads it, alone and, where it is installed, under lm-eval; and the model."""
    import torch
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, args.dtype)).to(args.device).eval()
    inputs, targets = (torch.from_numpy(ids.astype(np.int64)).to(args.device) for ids in (load.ids[:, :-1], load.ids[:, 1:]))

    def logits() -> torch.Tensor:
        with torch.inference_mode():
            figures: torch.Tensor = model(inputs, use_cache=False).logits
        return figures

    def naive() -> np.ndarray:
        with torch.inference_mode():
            log_probabilities = torch.log_softmax(logits(), dim=-1, dtype=torch.float32)
            log_probabilities.argmax(dim=-1).cpu()
            return -log_probabilities.gather(2, targets[..., None]).cpu().numpy().ravel()

    methods: dict[str, Callable[[], Any]] = {BARE: lambda: logits() is None, NAIVE: naive}  # nothing is kept of the bare one
    if importlib.util.find_spec("lm_eval") is not None:
        for what, texts in ((TEXTS, load.texts), (DOCUMENTS, load.documents)):
            for batch in sorted({1, load.batch}, reverse=True):
                methods[f"lm-eval, {what}, batch {batch}"] = rolling(model, load, texts, batch)
    return methods, model


def rolling(model: Any, load: Load, texts: list[str], batch: int) -> Callable[[], np.ndarray]:
    """lm-eval's rolling log-likelihoods of texts, `batch` windows at a time."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(model, tokenizer=load.tokenizer, batch_size=batch, max_length=load.seq_len, add_bos_token=False)
    assert lm.prefix_token_id == load.ids_of("")[0]
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return lambda: np.array(lm.loglikelihood_rolling(requests, disable_tqdm=True))


def matrix_weights(model: Any) -> int:
    """Weights that every token is multiplied with: all but the input embedding, which is the head where they are tied."""
    tied = model.get_input_embeddings().weight is model.get_output_embeddings().weight
    return sum(p.numel() for p in model.parameters()) - (0 if tied else model.get_input_embeddings().weight.numel())


# ------------------------------------------------------------------------------------------------------------ measuring


class Clock:
    """Seconds and extra peak memory of a run, on CPU or on a GPU."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.device, self.on_gpu = args.device, args.device == "cuda"
        self.now = time.process_time if args.threads == 1 and not self.on_gpu else time.perf_counter

    def second_run(self, run: Callable[[], Any]) -> float:
        """Seconds of the second of two runs: the first begins with whatever memory another method left behind."""
        run()
        self._finish()
        begin = self.now()
        run()  # what it gives is freed at once: giving memory back is part of the work
        self._finish()
        return self.now() - begin

    def first_run(self, run: Callable[[], Any]) -> tuple[float, Any]:
        """Peak memory beyond what was held before, in MB (NaN where it cannot be told), and the result."""
        memory_before = self._memory(peak=False)
        result = run()
        self._finish()
        return (self._memory(peak=True) - memory_before) / 1e6, result

    def matrix_rate(self, dtype: str) -> float | None:
        """Operations a second of a large square matrix product on a GPU: the median of ten, of 50 products each."""
        if not self.on_gpu:
            return None
        import torch

        shape = (MATRIX_SIZE, MATRIX_SIZE)
        left, right = (torch.randn(shape, device=self.device, dtype=getattr(torch, dtype)) for _ in range(2))
        out, rates = torch.empty_like(left), []
        for _ in range(11):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(50):
                torch.mm(left, right, out=out)
            end.record()
            end.synchronize()
            rates.append(50 * 2 * MATRIX_SIZE**3 / (begin.elapsed_time(end) / 1000))
        return statistics.median(rates[1:])

    def _finish(self) -> None:
        if self.on_gpu:
            import torch

            torch.cuda.synchronize(self.device)

    def _memory(self, *, peak: bool) -> float:
        """Bytes held now, from where a new peak is looked for; or the peak since."""
        if self.on_gpu:
            import torch

            if peak:
                return float(torch.cuda.max_memory_allocated(self.device))
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self.device)
            return float(torch.cuda.memory_allocated(self.device))
        if peak:
            return 1024.0 * harness.memory_kb("VmHWM")
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)  # freed memory to the system: it would hide what the next run takes
        return 1024.0 * harness.forget_peak()


def check(results: dict[str, Any], tolerance: float) -> dict[str, float]:
    """Largest differences of NLLs from the naive ones, and of texts' log-likelihoods from lm-eval's, relative.

    Raises AssertionError for methods that did not compute the same.
    """
    differences = {"nll_nats": float(np.abs(results[OURS] - results[NAIVE]).max())}
    own = results[f"{OURS}, {TEXTS}"]
    differences |= {name: float(np.abs(own / values - 1).max()) for name, values in results.items() if name.startswith(f"lm-eval, {TEXTS}")}
    assert differences["nll_nats"] <= tolerance * max(1.0, float(results[NAIVE].max())), differences
    assert all(value <= tolerance for name, value in differences.items() if name != "nll_nats"), differences
    return differences


def ours_of(name: str) -> str:
    """The method of ours that another's rate is compared with."""
    return next((f"{OURS}, {what}" for what in (TEXTS, DOCUMENTS) if what in name), OURS)


def measure(name: str, path: Path, load: Load, args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    clock, before = Clock(args), os.getloadavg()
    with contextlib.redirect_stderr(io.StringIO()):  # where progress bars are shown
        ours, chosen = our_methods(load, path, args)
        others, model = other_methods(load, path, args)
        methods = {**ours, **others}
        first = {method: clock.first_run(run) for method, run in methods.items()}
        differences = check({method: result for method, (_, result) in first.items()}, 1e-3 if args.dtype == "float32" else 0.05)
        seconds = harness.in_turn(methods, args.repeats, lambda method: clock.second_run(methods[method]))
    texts = {TEXTS: load.texts, DOCUMENTS: load.documents}
    text_tokens = {f"{OURS}, {what}": sum(len(load.ids_of(text)) - 1 for text in some) for what, some in texts.items()}
    tokens = {OURS: load.batch * load.seq_len, **text_tokens}
    return {
        "model": name,
        "batch": load.batch,
        "seq_len": load.seq_len,
        "tokens": {method: tokens[ours_of(method)] for method in methods},
        "seconds": seconds,
        "extra_mb": {method: megabytes for method, (megabytes, _) in first.items()},
        "differences": differences,
        "load": before,
        "chosen_batch": chosen,
        "parameters": sum(p.numel() for p in model.parameters()),
        "matrix_weights": matrix_weights(model),
        "matrix_rate": clock.matrix_rate(args.dtype),
    }


# ------------------------------------------------------------------------------------------------------------ reporting


def ratios(result: dict[str, Any], its: str) -> list[float]:
    """Our rate as a multiple of another's, round by round."""
    ours = ours_of(its)
    per_token = {name: [seconds / result["tokens"][name] for seconds in result["seconds"][name]] for name in (ours, its)}
    return [theirs / mine for mine, theirs in zip(per_token[ours], per_token[its], strict=True)]


def report(result: dict[str, Any], args: argparse.Namespace) -> None:
    """Rates, ratios to ours, the targets, and the scan."""
    loads = "/".join(f"{load:.1f}" for load in result["load"])
    size = f"{result['batch']} x {result['seq_len']} tokens, {args.repeats} rounds"
    print(f"\n{result['model']}: {result['parameters'] / 1e6:.1f}M parameters, {args.dtype}, {size}, load {loads}")
    share = "   of peak" if result["matrix_rate"] else ""
    print(f"{'':28}{'tok/s':>10}{'min':>10}{'max':>10}{'extra MB':>10}   ours/its: median, range{share}")
    for name, seconds in result["seconds"].items():
        rates = [result["tokens"][name] / s for s in seconds]
        ours = ratios(result, name)
        line = f"{name:28}{statistics.median(rates):10,.0f}{min(rates):10,.0f}{max(rates):10,.0f}{result['extra_mb'][name]:10,.0f}"
        line += f"   {statistics.median(ours):6.2f}  {min(ours):.2f} to {max(ours):.2f}"
        if result["matrix_rate"]:
            line += f"{2 * result['matrix_weights'] * statistics.median(rates) / result['matrix_rate']:12.1%}"
        print(line)
    report_targets(result)


def report_targets(result: dict[str, Any]) -> None:
    bare = statistics.median(ratios(result, BARE))
    if result["model"] in ("llama", "mamba"):
        rates = [result["tokens"][OURS] / statistics.median(result["seconds"][method]) for method in (OURS, BARE)]
        harness.print_stage(f"score a tiny {result['model']}", BARE, *rates, "tok/s", target=LEAST_OF_BARE, ratio=bare)
    print(f"target {LEAST_OF_BARE} of the bare forward: {bare:.2f} {verdict(bare >= LEAST_OF_BARE)}")
    for name in (name for name in result["seconds"] if name.startswith("lm-eval")):
        ratio = statistics.median(ratios(result, name))
        least, reach = verdict(ratio >= LEAST_OF_LM_EVAL), verdict(ratio >= REACH_OF_LM_EVAL)
        print(f"target {LEAST_OF_LM_EVAL}x {name}: {ratio:.2f}x {least}, reach {REACH_OF_LM_EVAL}x {reach}")
    worst = max((value for name, value in result["differences"].items() if name != "nll_nats"), default=None)
    texts = "lm-eval is not installed" if worst is None else f"log-likelihoods of texts by a share of {worst:.0e} at most"
    print(f"NLLs differ from the naive ones by {result['differences']['nll_nats']:.0e} nats at most; {texts}")
    print(f"recallkit chooses {result['chosen_batch']} sequences in a batch")


# -------------------------------------------------------------------------------------------------------------- running


def measure_named(name: str, args: argparse.Namespace) -> dict[str, Any]:
    import torch

    subject, tokenizer = SUBJECTS[name], builtin_tokenizer()
    tokens, seq_len = args.tokens or subject.tokens, args.seq_len or subject.seq_len
    with tempfile.TemporaryDirectory() as folder:
        path = write_random_model(subject, Path(folder), args.device, getattr(torch, args.dtype))
        return measure(name, path, read_load(tokenizer, max(1, tokens // seq_len), seq_len), args)


def begin(args: argparse.Namespace) -> torch.dtype:
    """No advice, no progress bars, no threads of tokenizers, as many of torch's as asked; prints the machine. Returns the precision."""
    warnings.filterwarnings("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    where = f"{torch.cuda.get_device_name()}, " if args.device == "cuda" else ""
    print(f"{where}{harness.machine(args.threads)}; torch {torch.__version__}, transformers {transformers.__version__}")
    dtype: torch.dtype = getattr(torch, args.dtype)
    return dtype


def main() -> None:
    parser = harness.parser_of(__doc__, repeats=5, runs="rounds")
    parser.add_argument("--models", nargs="+", choices=SUBJECTS, metavar="MODEL", help=", ".join(SUBJECTS))
    parser.add_argument("--threads", type=int, default=1, help="of torch, on CPU (1)")
    parser.add_argument("--tokens", type=int, help="of a round; a multiple of the sequence length")
    parser.add_argument("--seq-len", type=int, help="tokens of a sequence (512; 2048 for the large models)")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="float32 on CPU, bfloat16 on a GPU")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every measurement to a file")
    args = parser.parse_args()
    on_gpu = args.device == "cuda"
    args.dtype = args.dtype or ("bfloat16" if on_gpu else "float32")
    begin(args)
    results = []
    for name in args.models or (GPU_MODELS if on_gpu else CPU_MODELS):
        results.append(measure_named(name, args))
        report(results[-1], args)
    print(f"\nload after {os.getloadavg()[0]:.1f}")
    if args.json:
        about = {name: getattr(args, name) for name in ("device", "dtype", "threads")}
        args.json.write_text(json.dumps({**about, "results": results}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
