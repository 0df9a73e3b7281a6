"""Trains the models of the zoo: one recipe, the same tokens in the same order, whatever the mixer.

    python examples/train_zoo.py prepare --data zoo-data [--shards 'shards/*.jsonl.zst' --leave-out Github]
    python examples/train_zoo.py train attention --data zoo-data --runs zoo-runs --tokens 3000000 [--device cuda]
    python examples/train_zoo.py export attention --data zoo-data --runs zoo-runs --to recallkit/data/zoo
    python examples/train_zoo.py count --data zoo-data --tokens 3000000 --to recallkit/data/zoo

`prepare` makes windows of ids of the built-in tokenizer from the training part of the demo text and, given with --shards,
JSON Lines shards in the Pile's format; sets named with --leave-out are dropped, so that no evaluation text of the demo is
seen. `train` reads the windows in order, each once, and resumes an interrupted run; it needs only torch,
numpy and safetensors. `export` writes float16 weights with a model card: tokens, loss curve, date, machine. `count` writes the exact
bigram counts of the tokens seen by a run of that many tokens.

The recipe: Muon for the matrices of blocks, AdamW for the rest; the learning rate rises over 50 steps, stays, and falls linearly to
2 % over the last two fifths; bfloat16 products, float32 weights. So that a few million tokens suffice to learn recall, mixers
with queries and keys are initialised such that a token attends to what followed it earlier (`start_mimetic`).
"""

from __future__ import annotations

import argparse
import datetime as dt
import hashlib
import json
import platform
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Iterator
    from collections.abc import Set as AbstractSet

    from recallkit.models.language_model import LanguageModel

DEMO = "demo:train"
"""The text that every model sees, whatever the shards: a source as `recallkit` names them."""
CONTEXT = 256
HELD_OUT = 256
"""Number of held-out windows, for the loss curves."""
BATCH = 4
WARM_UP_STEPS = 50
DECAY_SHARE = 0.4
FLOOR = 0.02
MATRIX_LEARNING_RATE, LEARNING_RATE = 0.02, 3e-3
EMBEDDING_STD = 0.02
QUERY_SCALE = 1.5
SAVED_EVERY_SECONDS = 60
MEASURED_EVERY_TOKENS = 200_000
RARE = 5
"""In the loss curves a bigram is rare if it occurs at most this often in the training tokens."""
SEED = 0
_DIGESTED_BYTES = 1 << 20


# ----------------------------------------------------------------------------------------------------------------- data


def prepare(args: argparse.Namespace) -> None:
    """Writes windows.npy, uint16 (n, CONTEXT + 1), in the order of training; held_out.npy; and a manifest of their sources."""
    if not 0 < args.demo_share <= 1:
        raise SystemExit(f"--demo-share {args.demo_share:g}: give a share above 0, at most 1")
    others = documents_of(args.shards, set(args.leave_out)) if args.shards else []
    ids, manifest = encoded_documents(mixed(documents_of([DEMO]), others, args.demo_share))
    num_windows = max(0, (len(ids) - 1) // CONTEXT)
    if num_windows <= HELD_OUT:
        raise SystemExit(f"{len(ids):,} tokens make {num_windows} windows, and {HELD_OUT} are held out: give more text with --shards")
    windows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1)[::CONTEXT]
    training = windows[:-HELD_OUT][np.random.default_rng(SEED).permutation(len(windows) - HELD_OUT)].copy()
    args.data.mkdir(parents=True, exist_ok=True)
    np.save(args.data / "windows.npy", training)
    np.save(args.data / "held_out.npy", windows[-HELD_OUT:])
    (args.data / "manifest.json").write_text(json.dumps(manifest, indent=2))
    print(f"{len(training):,} windows of {CONTEXT} predictions in {args.data}: {manifest['tokens_of_source']}", file=sys.stderr)


def documents_of(sources: list[str], leave_out: AbstractSet[str] = frozenset()) -> list[tuple[str, str]]:
    """Set and text of each document of the sources, without those of the sets to leave out."""
    from recallkit.text.corpus import open_corpus

    return [(document.source, document.text) for document in open_corpus(sources).documents() if document.source not in leave_out]


def mixed(demo: list[tuple[str, str]], others: list[tuple[str, str]], demo_share: float) -> list[tuple[str, str]]:
    """All of the demo's documents, and as many randomly drawn others as give the demo `demo_share` of the characters.

    Shuffled; the last one drawn may exceed the share, and with too few others the demo has more.
    """
    rng = np.random.default_rng(SEED)
    chosen, wanted = list(demo), sum(len(text) for _, text in demo) * (1 - demo_share) / demo_share
    for i in rng.permutation(len(others)):
        if wanted <= 0:
            break
        chosen.append(others[i])
        wanted -= len(others[i][1])
    return [chosen[i] for i in rng.permutation(len(chosen))]


def encoded_documents(documents: list[tuple[str, str]]) -> tuple[np.ndarray, dict[str, Any]]:
    """Sets and texts -> their ids in one stream, uint16, each document preceded by an end token, and the composition of the stream."""
    from recallkit.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(None)
    encoded = tokenizer.backend.encode_batch([text for _, text in documents], add_special_tokens=False)
    tokens_of_source: dict[str, int] = {}
    for (source, _), encoding in zip(documents, encoded, strict=True):
        tokens_of_source[source] = tokens_of_source.get(source, 0) + len(encoding.ids) + 1
    stream = np.concatenate([np.array([tokenizer.end_token_id, *encoding.ids], np.uint16) for encoding in encoded])
    return stream, {"tokenizer": tokenizer.name, "tokenizer_digest": tokenizer.digest, "tokens_of_source": tokens_of_source}


def count(args: argparse.Namespace) -> None:
    """Writes training_bigrams.parquet: first, second, count of every bigram that a run of --tokens predicts."""
    import polars as pl

    windows = np.load(args.data / "windows.npy", mmap_mode="r")[: num_steps(args.tokens) * BATCH].astype(np.uint32)
    keys, counts = np.unique((windows[:, :-1] << 16 | windows[:, 1:]).ravel(), return_counts=True)
    table = pl.DataFrame({"first": keys >> 16, "second": keys & 0xFFFF, "count": counts.astype(np.uint32)})
    args.to.mkdir(parents=True, exist_ok=True)
    table.write_parquet(args.to / "training_bigrams.parquet", compression="zstd", compression_level=19)
    print(f"{len(table):,} bigrams, {counts.sum():,} tokens", file=sys.stderr)


def num_steps(tokens: int) -> int:
    """Steps of a run of that many predicted tokens."""
    return tokens // (BATCH * CONTEXT)


def digest_windows(windows: np.ndarray) -> str:
    """A digest of windows without reading all of them: of their shape, and the first and the last MiB."""
    rows = max(1, _DIGESTED_BYTES // windows[0].nbytes)
    parts = (str((windows.shape, windows.dtype.str)).encode(), windows[:rows].tobytes(), windows[-rows:].tobytes())
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


# ------------------------------------------------------------------------------------------------------------- training


class Run:
    """One model in training: weights, optimisers, its step, and its measurements."""

    def __init__(self, name: str, folder: Path, windows: np.ndarray, held_out: np.ndarray, tokens: int, device: str) -> None:
        from recallkit.models.language_model import LanguageModel
        from recallkit.models.zoo import architecture

        torch.manual_seed(SEED)
        self.name, self.path, self.device = name, folder / f"{name}.pt", torch.device(device)
        self.model = LanguageModel(architecture(name))
        start(self.model)
        self.model.to(self.device)
        self.optimisers = optimisers(self.model)
        self.windows, self.held_out = windows, HeldOut(held_out, windows[: num_steps(tokens) * BATCH])
        self.data_digest = digest_windows(windows)
        self.num_steps, self.step, self.seconds = num_steps(tokens), 0, 0.0
        self.curve: list[dict[str, float]] = []

    def save(self) -> None:
        """Saves everything needed to resume, atomically."""
        saved = {
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
            "progress": {"step": self.step, "seconds": self.seconds, "curve": self.curve, "num_steps": self.num_steps},
            "data": self.data_digest,
        }
        torch.save(saved, self.path.with_suffix(".part"))
        self.path.with_suffix(".part").replace(self.path)

    def restore(self) -> None:
        """Restores the saved run, if there is one.

        Raises SystemExit for a run of another length, whose learning rates differ, and for one on other data (not checked for files
        from before data had a digest).
        """
        if not self.path.exists():
            return
        saved = torch.load(self.path, map_location=self.device, weights_only=True)
        progress = saved["progress"]
        if progress["num_steps"] != self.num_steps:
            raise SystemExit(f"{self.path} is of a run of {progress['num_steps']:,} steps, not {self.num_steps:,}: choose other --runs")
        if saved.get("data", self.data_digest) != self.data_digest:
            raise SystemExit(f"{self.path} was trained on other windows than those of --data: choose other --runs")
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.step, self.seconds, self.curve = progress["step"], progress["seconds"], progress["curve"]

    def advance(self) -> float:
        """One step. Returns its loss in nats per token."""
        rows = self.windows[self.step * BATCH : (self.step + 1) * BATCH]
        ids = torch.from_numpy(rows.astype(np.int64)).to(self.device)
        share = self._learning_share()
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = group["initial_lr"] * share
        with torch.autocast(self.device.type, torch.bfloat16):
            logits = self.model(ids[:, :-1])
            extra = self.model.auxiliary_loss()
        loss = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())
        (loss if extra is None else loss + extra).backward()
        for optimiser in self.optimisers:
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        self.step += 1
        return float(loss.detach())

    def _learning_share(self) -> float:
        left = (self.num_steps - self.step) / (DECAY_SHARE * self.num_steps)
        return min((self.step + 1) / WARM_UP_STEPS, 1.0) * max(FLOOR, min(1.0, left))

    def measure(self) -> dict[str, float]:
        """Adds the losses on held-out windows to the curve."""
        self.curve.append({"tokens": self.step * BATCH * CONTEXT, "seconds": round(self.seconds, 1), **self.held_out.losses(self)})
        return self.curve[-1]


@torch.no_grad()
def start(model: LanguageModel) -> None:
    """Initialises small embeddings, zero outputs of MLPs and of mixers that end in a projection, and equal queries and keys."""
    nn.init.normal_(model.embedding.weight, std=EMBEDDING_STD)
    for block in model.blocks:
        start_mimetic(block.mixer)
        if hasattr(block.mixer, "out_proj"):
            nn.init.zeros_(block.mixer.out_proj.weight)
        nn.init.zeros_(block.mlp.down.weight)


def start_mimetic(mixer: nn.Module) -> None:
    """Where a mixer has queries and keys, initialises both as the same projection, the keys half from the token before.

    A query then finds the tokens that followed earlier occurrences of its own. Initialising attention as a similarity of tokens
    is the mimetic initialisation of Trockman and Kolter (arXiv 2305.09828); the shift turns similarity into recall.
    """
    queries, keys = query_and_key_rows(mixer)
    if queries is None or keys is None:
        return
    keys.copy_(queries)
    convolution = mixer.short_conv.conv.weight  # (channels of q, k and v, 1, kernel), the present token's tap last
    convolution.zero_()
    convolution[:, 0, -1] = 1
    channels = slice(len(queries), 2 * len(queries))
    convolution[channels, 0, -2:] = 0.5
    if getattr(mixer, "q_norm", None) is not None:
        nn.init.constant_(mixer.q_norm.weight, QUERY_SCALE)


def query_and_key_rows(mixer: nn.Module) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The weight rows of queries and those of keys, where a mixer has both."""
    if hasattr(mixer, "qkv"):
        queries, keys, _ = mixer.qkv.weight.chunk(3)
        return queries, keys
    if hasattr(mixer, "q_proj"):
        return mixer.q_proj.weight, mixer.k_proj.weight
    return None, None


def optimisers(model: LanguageModel) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024) for the matrices of linear layers in blocks, AdamW for everything else."""
    matrices = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear) and min(m.weight.shape) > 1]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    made = [
        torch.optim.Muon(matrices, lr=MATRIX_LEARNING_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimiser in made:
        for group in optimiser.param_groups:
            group["initial_lr"] = group["lr"]
    return made


class HeldOut:
    """Held-out windows with classes of tokens: AR hits, equally rare first occurrences, and a copied span."""

    def __init__(self, windows: np.ndarray, training: np.ndarray) -> None:
        self.ids = windows.astype(np.int64)
        seen = np.sort((training[:, :-1].astype(np.uint32) << 16 | training[:, 1:]).ravel())
        keys = (self.ids[:, :-1] << 16 | self.ids[:, 1:]).astype(np.uint32)
        rare = np.searchsorted(seen, keys, "right") - np.searchsorted(seen, keys, "left") <= RARE
        repeated = np.array([[key in row[:i] for i, key in enumerate(row)] for row in keys.tolist()])
        self.slices = {"ar_hit": rare & repeated, "first_rare": rare & ~repeated, "other": ~(rare & repeated)}
        self.copies = self.ids[:64].copy()
        repeat_stretches(self.copies)

    def losses(self, run: Run) -> dict[str, float]:
        """Mean NLL in nats of each kind of tokens; of copied spans, the second occurrence (`copied`)."""
        nll = self._nll(run, self.ids)
        changed = (self.copies != self.ids[:64])[:, 1:] & (self.copies != self.ids[:64])[:, :-1]
        found = {"all": nll.mean(), **{name: nll[where].mean() for name, where in self.slices.items()}}
        found["copied"] = self._nll(run, self.copies)[changed].mean()
        return {name: round(float(value), 4) for name, value in found.items()}

    def _nll(self, run: Run, ids: np.ndarray) -> np.ndarray:
        parts = []
        with torch.no_grad(), torch.autocast(run.device.type, torch.bfloat16):
            for rows in torch.from_numpy(ids).split(16):
                some = rows.to(run.device)
                logits = run.model(some[:, :-1]).float()
                parts.append(functional.cross_entropy(logits.transpose(1, 2), some[:, 1:], reduction="none").cpu())
        return torch.cat(parts).numpy()


def repeat_stretches(windows: np.ndarray) -> None:
    """In each window, a span of 16 to 127 ids from anywhere in it replaces as many ids anywhere after it."""
    rng = np.random.default_rng(SEED)
    size = windows.shape[1]
    for window in windows:
        length = int(rng.integers(16, size // 2))
        first = int(rng.integers(0, size - 2 * length + 1))
        second = int(rng.integers(first + length, size - length + 1))
        window[second : second + length] = window[first : first + length]


def train(args: argparse.Namespace) -> None:
    """Trains each of the named models for --tokens, resuming an interrupted run of the same length."""
    from tqdm import tqdm

    torch.set_num_threads(args.threads)
    args.runs.mkdir(parents=True, exist_ok=True)
    windows, held_out = np.load(args.data / "windows.npy", mmap_mode="r"), np.load(args.data / "held_out.npy")
    if num_steps(args.tokens) * BATCH > len(windows):
        raise SystemExit(f"{args.data} has {len(windows) * CONTEXT:,} tokens: prepare more, or train on fewer")
    for name in args.names:
        run = Run(name, args.runs, windows, held_out, args.tokens, args.device)
        run.restore()
        with tqdm(desc=name, total=run.num_steps, initial=run.step, unit="step", disable=not sys.stderr.isatty()) as progress:
            for loss in steps(run):
                progress.update()
                progress.set_postfix(loss=f"{loss:.2f}")


def steps(run: Run) -> Iterator[float]:
    """Trains to the end, saving and measuring on the way; yields the loss of each step."""
    begun, saved = time.monotonic() - run.seconds, time.monotonic()
    every = max(1, num_steps(MEASURED_EVERY_TOKENS))
    while run.step < run.num_steps:
        yield run.advance()
        run.seconds = time.monotonic() - begun
        is_last = run.step == run.num_steps
        if run.step % every == 0 or is_last:
            print(run.name, json.dumps(run.measure()), file=sys.stderr, flush=True)
            begun = time.monotonic() - run.seconds  # measuring is not counted as training
        if is_last or time.monotonic() - saved > SAVED_EVERY_SECONDS:
            run.save()
            saved = time.monotonic()


# -------------------------------------------------------------------------------------------------------------- shipping


def export(args: argparse.Namespace) -> None:
    """Writes config.json, model.safetensors (float16) and card.json of each named model into a folder of its own.

    Raises SystemExit, and writes nothing of that model, where a weight overflows in float16.
    """
    from safetensors.torch import save_file

    from recallkit.models.zoo import architecture, config_json

    manifest = json.loads((args.data / "manifest.json").read_text())
    for name in args.names:
        saved = torch.load(args.runs / f"{name}.pt", map_location="cpu", weights_only=True)
        weights = {key: value.half().contiguous() for key, value in saved["model"].items()}
        if beyond := [key for key, value in weights.items() if not value.isfinite().all()]:
            raise SystemExit(f"{name}: weight {beyond[0]} is not finite in float16 ({len(beyond)} such in total): train the model again")
        folder = args.to / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(config_json(architecture(name)))
        (folder / "card.json").write_text(json.dumps(card(saved["progress"], manifest), indent=2) + "\n")


def card(progress: dict[str, Any], manifest: dict[str, Any]) -> dict[str, Any]:
    """The model card: how the weights were trained."""
    return {
        "tokens": progress["step"] * BATCH * CONTEXT,
        "context": CONTEXT,
        "steps": progress["step"],
        "planned_steps": progress["num_steps"],
        "batch_tokens": BATCH * CONTEXT,
        "seconds": round(progress["seconds"]),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": _machine(),
        "torch": torch.__version__,
        "seed": SEED,
        "text": manifest,
        "curve": progress["curve"],
    }


def _machine() -> str:
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    """Parses the command line and runs its command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for command in (prepare, train, export, count):
        sub = commands.add_parser(command.__name__, help=(command.__doc__ or "").splitlines()[0])
        sub.set_defaults(run=command)
        sub.add_argument("--data", type=Path, required=True)
        if command in (train, export):
            sub.add_argument("names", nargs="+")
            sub.add_argument("--runs", type=Path, required=True)
        if command in (export, count):
            sub.add_argument("--to", type=Path, required=True)
        if command in (train, count):
            sub.add_argument("--tokens", type=int, required=True)
        if command is train:
            sub.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
            sub.add_argument("--threads", type=int, default=1)
        if command is prepare:
            sub.add_argument("--shards", nargs="*", default=[])
            sub.add_argument("--leave-out", nargs="*", default=[])
            sub.add_argument("--demo-share", type=float, default=0.7)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
