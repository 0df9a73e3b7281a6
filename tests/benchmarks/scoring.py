"""Scores models with recallkit, by their bare forward pass and with lm-eval, in turn: tokens a
second.

    python tests/benchmarks/scoring.py python tests/benchmarks/scoring.py --models llama --threads 2
    --repeats 7 python tests/benchmarks/scoring.py --device cuda --dtype bfloat16 --models llama-1b
    llama-3b mamba-1b

Models have random weights; text is Python's standard library, cut into sequences of equal length.
In each round every method runs twice, and the second run is timed, with one thread on CPU in the
processor's seconds. "bare forward" is `model(ids, use_cache=False).logits` of a model that
transformers loaded, and nothing else. With lm-eval the sequences are decoded texts: both we and its
`loglikelihood_rolling` tokenise them and read each in one window after an end token. NLLs are
compared with a log-softmax in float32, log-likelihoods of texts with lm-eval's.

On a GPU nothing is imported but torch, triton, numpy, transformers, tokenizers, safetensors,
recallkit's models and kernels, and lm-eval where it is installed.
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import sys
import sysconfig
import warnings
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    import torch

# --------------------------------------------------------------------------------------------------------------- models


@dataclass(frozen=True)
class Subject:
    """A model with random weights: its configuration, and how much of it is a fair load."""

    config: dict[str, Any]
    tokens: int = 2048
    seq_len: int = 512


def tiny(model_type: str, **more: Any) -> Subject:
    size = {"vocab_size": 4096, "hidden_size": 256, "num_hidden_layers": 2}
    tokens = {"bos_token_id": 0, "eos_token_id": 0, "pad_token_id": 0}
    return Subject({"model_type": model_type, **size, **tokens, **more})


def large(model_type: str, **more: Any) -> Subject:
    return Subject(
        {"model_type": model_type, "tie_word_embeddings": True, **more}, tokens=16384, seq_len=2048
    )


_ATTENTION = {"num_attention_heads": 4, "intermediate_size": 1024, "max_position_embeddings": 2048}
_LLAMA = {
    "vocab_size": 128256,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "max_position_embeddings": 8192,
}

SUBJECTS: dict[str, Subject] = {
    "llama": tiny("llama", **_ATTENTION, num_key_value_heads=4),
    "gpt_neox": tiny("gpt_neox", **_ATTENTION),
    "mamba": tiny("mamba", state_size=16),
    "mamba2": tiny("mamba2", state_size=64, num_heads=8, head_dim=64, n_groups=1, chunk_size=128),
    "rwkv": tiny("rwkv", attention_hidden_size=256, context_length=2048),
    "llama-1b": large(
        "llama", hidden_size=2048, num_hidden_layers=16, num_attention_heads=32, **_LLAMA
    ),
    "llama-3b": large(
        "llama", hidden_size=3072, num_hidden_layers=28, num_attention_heads=24, **_LLAMA
    ),
    "mamba-1b": large(
        "mamba", vocab_size=50280, hidden_size=2048, num_hidden_layers=48, state_size=16
    ),
}


def write_random_model(subject: Subject, folder: Path, device: str, dtype: torch.dtype) -> Path:
    """A model directory with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(**subject.config), dtype=dtype
        )
    model.save_pretrained(folder)
    return folder


def load_theirs(path: Path, args: argparse.Namespace) -> Any:
    """The model as transformers loads it."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(path, dtype=getattr(torch, args.dtype))
    return model.to(args.device).eval()


def builtin_tokenizer() -> Any:
    from transformers import PreTrainedTokenizerFast

    file = harness.ROOT / "recallkit" / "data" / "tokenizer.json"
    return PreTrainedTokenizerFast(tokenizer_file=str(file), eos_token="<|endoftext|>")


def begin(args: argparse.Namespace) -> torch.dtype:
    """Without advice, progress bars and threads of tokenizers; prints the machine. Returns the
    precision."""
    warnings.filterwarnings("ignore")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    import torch
    import transformers

    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    where = f"{torch.cuda.get_device_name()}, " if args.device == "cuda" else ""
    versions = f"torch {torch.__version__}, transformers {transformers.__version__}"
    print(f"{where}{harness.machine(args.threads)}; {versions}")
    dtype: torch.dtype = getattr(torch, args.dtype)
    return dtype


# ----------------------------------------------------------------------------------------------------------------- text


def encode(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids)


def read_ids(tokenizer: Any, batch: int, seq_len: int) -> np.ndarray:
    """(batch, seq_len + 1): a sequence begins with the last id of the one before, as in [0 1 2] [2
    3 4]."""
    ids: list[int] = []
    for path in itertools.cycle(sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))):
        ids += encode(tokenizer, path.read_text(encoding="utf-8", errors="ignore"))
        if len(ids) > batch * seq_len:
            break
    starts = np.arange(batch)[:, None] * seq_len
    return np.array(ids)[starts + np.arange(seq_len + 1)]


def text_of(tokenizer: Any, ids: np.ndarray) -> str:
    """Text that takes no more ids than these: text that is cut elsewhere may take more of them."""
    for stop in range(len(ids), 0, -1):
        text = str(tokenizer.decode(ids[:stop].tolist(), clean_up_tokenization_spaces=False))
        if len(encode(tokenizer, text)) <= len(ids):
            return text
    raise AssertionError


# -------------------------------------------------------------------------------------------------------------- methods


def our_nll(path: Path, args: argparse.Namespace) -> Callable[[list[np.ndarray]], np.ndarray]:
    """The NLLs of sequences."""
    from recallkit.models.loading import load_model
    from recallkit.models.plan import ModelPlan
    from recallkit.models.spec import ModelSpec

    scorer: Any = load_model(
        ModelPlan(ModelSpec(str(path)), 1, device=args.device, dtype=args.dtype)
    )

    def nll(sequences: list[np.ndarray]) -> np.ndarray:
        offsets = np.concatenate([[0], np.cumsum([len(sequence) for sequence in sequences])])
        return np.asarray(scorer.score(np.concatenate(sequences).astype(np.uint32), offsets).nll)

    return nll


def logits_of(model: Any, inputs: torch.Tensor) -> torch.Tensor:
    import torch

    with torch.inference_mode():
        logits: torch.Tensor = model(inputs, use_cache=False).logits
    if inputs.is_cuda:
        torch.cuda.synchronize()
    return logits


def naive_nll(model: Any, inputs: torch.Tensor, targets: torch.Tensor) -> np.ndarray:
    """By a log-softmax in float32."""
    logits = logits_of(model, inputs).float()
    nll: np.ndarray = (
        -logits.log_softmax(dim=-1).gather(2, targets[..., None]).cpu().numpy().ravel()
    )
    return nll


def rolling(
    model: Any, tokenizer: Any, texts: list[str], batch: int, seq_len: int
) -> Callable[[], np.ndarray]:
    """lm-eval's rolling log-likelihoods of texts, `batch` windows at a time."""
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    lm = HFLM(model, tokenizer=tokenizer, batch_size=batch, max_length=seq_len, add_bos_token=False)
    requests = [
        Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)
    ]
    return lambda: np.array(lm.loglikelihood_rolling(requests, disable_tqdm=True))


def compare_sides(
    args: argparse.Namespace,
    stage: str,
    sides_of: Callable[[Path, str, int], tuple[dict[str, Callable[[], Any]], int]],
    **options: Any,
) -> None:
    """Both sides' answers of models in batches; the last batch's are a row of the page.

    `sides_of`: of the model's folder, its name and the batch; the calls of both, and the work that
    they do.
    """
    dtype = begin(args)
    with harness.scratch() as folder:
        for model in args.models:
            path = write_random_model(SUBJECTS[model], folder / model, args.device, dtype)
            builtin_tokenizer().save_pretrained(path)
            for batch in args.batches:
                name = f"{stage}, a tiny {model}, batch {batch}"
                calls, work = sides_of(path, model, batch)
                harness.compare_calls(
                    f"{name}, {args.dtype} on {args.device}",
                    calls,
                    repeats=args.repeats,
                    work=work,
                    stage=name if batch == args.batches[-1] else "",
                    may_differ=True,
                    **options,
                )


def freed(call: Callable[..., Any], *arguments: Any) -> None:
    """The call, whose result is freed within the time: giving memory back is part of the work."""
    call(*arguments)


def report(model: str, path: Path, args: argparse.Namespace) -> None:
    """Both tables of one model. Raises AssertionError if methods do not compute the same."""
    import torch

    subject, tokenizer = SUBJECTS[model], builtin_tokenizer()
    tokens, seq_len = args.tokens or subject.tokens, args.seq_len or subject.seq_len
    batch, tolerance = max(1, tokens // seq_len), 1e-3 if args.dtype == "float32" else 0.05
    ids = read_ids(tokenizer, batch, seq_len)
    nll, theirs = our_nll(path, args), load_theirs(path, args)
    inputs, targets = (torch.from_numpy(part).to(args.device) for part in (ids[:, :-1], ids[:, 1:]))
    expected = naive_nll(theirs, inputs, targets)
    assert np.abs(nll(list(ids)) - expected).max() <= tolerance * max(1.0, expected.max())
    title = f"{model}, {batch} x {seq_len} tokens, {args.dtype} on {args.device}"
    compare = partial(
        harness.compare_calls,
        clock=harness.clock_of(args.device, args.threads),
        repeats=args.repeats,
        unit="tok/s",
    )
    calls = {
        "recallkit": partial(freed, nll, list(ids)),
        "bare forward": partial(freed, logits_of, theirs, inputs),
    }
    stage = f"score a tiny {model}" if model in ("llama", "mamba") else ""
    compare(title, calls, work=batch * seq_len, stage=stage, targets={"bare forward": 0.97})
    if importlib.util.find_spec("lm_eval") is None:
        return
    texts = [text_of(tokenizer, row[:-1]) for row in ids]
    ends = np.cumsum([len(encode(tokenizer, text)) for text in texts])

    def score_texts() -> np.ndarray:
        """The log-likelihood of each text, behind what lm-eval puts before it."""
        sequences = [np.array([tokenizer.eos_token_id, *encode(tokenizer, text)]) for text in texts]
        parts = np.split(nll(sequences), ends[:-1])
        return np.array([-part.sum(dtype=np.float64) for part in parts])

    sizes = sorted({1, batch}, reverse=True)
    others = {
        f"lm-eval, batch {size}": rolling(theirs, tokenizer, texts, size, seq_len) for size in sizes
    }
    assert all(np.abs(score_texts() / other() - 1).max() <= tolerance for other in others.values())
    calls = {
        name: partial(freed, call) for name, call in {"recallkit": score_texts, **others}.items()
    }
    compare(f"{title}, as texts", calls, work=int(ends[-1]))


def main() -> None:
    options = {
        "--models": list(SUBJECTS)[:5],
        "--repeats": 5,
        "--tokens": 0,
        "--seq-len": 0,
        **harness.MODELS,
    }
    args = harness.parse(__doc__, options, models=SUBJECTS)
    dtype = begin(args)
    with harness.scratch() as folder:
        for model in args.models:
            path = write_random_model(SUBJECTS[model], folder / model, args.device, dtype)
            report(model, path, args)


if __name__ == "__main__":
    main()
