"""Trains the models of the zoo: one curriculum, the same tokens in the same order, whatever the mixer.

    python examples/train_zoo.py prepare --data zoo-data [--shards 'shards/*.jsonl.zst' --leave-out Github]
    nice python examples/train_zoo.py all --data zoo-data --runs zoo-runs --tokens 3000000 --workers 2
    python examples/train_zoo.py export --data zoo-data --runs zoo-runs --to zoo
    python examples/train_zoo.py count --data zoo-data --tokens 3000000 --to zoo

`prepare` makes windows of ids of the built-in tokenizer from the training part of the demo text and, given with --shards,
JSON Lines shards in the Pile's format; sets named with --leave-out are dropped, so that no evaluation text of the demo is
seen. `all` works through the pieces below, each a process of one thread that leaves a file when it has finished; finished pieces are
not repeated, so the same command resumes. `export` writes float16 weights with a model card. `count` writes the exact bigram counts of the
text seen by a run of that many tokens. `zoo_results.py` collects the pieces' results, tabulates and draws them.

The curriculum begins with each mixer's own initialisation, as in its paper.

1. Lists of keys and values (`lists NAME --rate R --seed S`): rows of 64 ids, 1,024 per step, the loss on the requested values alone;
   first of 32 different ids, and once 60 % of the values are right of all in the vocabulary; at several multiples R of the recipe's
   learning rates, and once more with another seed at the best of them. When 90 % are right in lists of 4 and of 16 pairs in 256 ids, the
   last 100 steps begin, over which the rate falls; the most steps are the same for all.
2. Text (`text NAME --tokens N`), from the weights that the best R gave, at the same R: windows of 256 predictions in their order,
   each once, and one row in 16 a list, so that recall is not forgotten. An interrupted run resumes where it was saved.

The recipe: Muon for the matrices of blocks, AdamW for the rest; the learning rate rises over 50 steps, stays, and in text falls linearly to
2 % over the last two fifths; bfloat16 products, float32 weights. Training needs only torch, numpy and safetensors; the finished model's
MQAR and `prepare` also need the tokenizer.
"""

from __future__ import annotations

import argparse
import datetime as dt
import functools
import json
import math
import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from zoo_data import (
    BATCH,
    CONTEXT,
    LIST_EVERY,
    LIST_IDS,
    SEED,
    Rows,
    count,
    digest_windows,
    make_lists,
    num_steps,
    prepare,
    rows_before,
    text_rows,
)
from zoo_measures import TEST_PAIRS, HeldOut, list_accuracy

from recallkit.models import zoo
from recallkit.models.language_model import LanguageModel
from recallkit.storage.artifacts import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from torch import Tensor

NAMES = ("attention", "delta", "based", "mamba", "rwkv", "retnet", "hybrid", "hyena", "base-conv", "base-conv-selective")
"""In the order in which `all` trains them."""
WARM_UP_STEPS = 50
DECAY_SHARE = 0.4
FLOOR = 0.02
MATRIX_LEARNING_RATE, LEARNING_RATE = 0.02, 3e-3
EMBEDDING_STD = 0.02
RATES = (0.25, 0.5, 1.0, 2.0)
"""Multiples of both learning rates, of which the best by the lists is chosen for each architecture."""
MORE_RATES: dict[str, tuple[float, ...]] = {"mamba": (0.7,)}
SEEDS = (0, 1)
LIST_LENGTH = 64
PAIRS = (1, 2, 4, 8, 16)
"""Numbers of pairs in lists of training."""
FIRST_IDS, READY, MEMORY = 32, 0.6, 0.9
"""Lists begin with so many different ids, and have all once this share of values is right, where guessing among a row's values gives 0.44.

The share is an average over the steps so far, each of which counts `MEMORY` times the next.
"""
LIST_STEPS, STUCK_STEPS = 1000, 600
"""Lists end after so many steps, and after the second number for a model that is still at the first ids."""
LEARNT, LAST_STEPS = 0.9, 100
"""At this accuracy with 4 and with 16 pairs the last steps of the lists begin, over which the learning rate falls to FLOOR."""
LISTS_MEASURED_EVERY = 25
SAVED_EVERY_SECONDS = 60
MEASURED_EVERY_TOKENS = 200_000


# --------------------------------------------------------------------------------------------------------------- models


def new_model(name: str, seed: int) -> LanguageModel:
    """A model at its mixers' own initialisation; small embeddings, since the head is tied to them, and MLPs that begin at zero."""
    torch.manual_seed(seed)
    model = LanguageModel(zoo.architecture(name, zoo.SHIPPED_SIZE))
    nn.init.normal_(model.embedding.weight, std=EMBEDDING_STD)
    for block in model.blocks:
        nn.init.zeros_(block.mlp.down.weight)
    return model


def optimisers(model: LanguageModel, rate: float) -> list[torch.optim.Optimizer]:
    """Muon (Jordan 2024) for the matrices of linear layers in blocks, AdamW for everything else, at `rate` times the recipe's rates."""
    matrices = [m.weight for m in model.blocks.modules() if isinstance(m, nn.Linear) and min(m.weight.shape) > 1]
    chosen = {id(matrix) for matrix in matrices}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in chosen]
    made = [
        torch.optim.Muon(matrices, lr=rate * MATRIX_LEARNING_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(rest, lr=rate * LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    for optimiser in made:
        for group in optimiser.param_groups:
            group["initial_lr"] = group["lr"]
    return made


def learn(
    model: LanguageModel, optimisers: list[torch.optim.Optimizer], rows: Rows, share: float, among: Tensor | None = None
) -> tuple[float, float]:
    """One step at a share of the learning rates. Returns its loss in nats and its accuracy, the means of what is asked for.

    `among`: the ids (m,) that are possible answers, all where None. The embeddings of others are then left as they are, where otherwise
    AdamW, which divides by the size of gradients, would move all ids that never occur by the same way, as far as those that do.
    """
    device = next(model.parameters()).device
    ids, asked = torch.from_numpy(rows.ids).to(device), torch.from_numpy(rows.asked).to(device)
    for optimiser in optimisers:
        for group in optimiser.param_groups:
            group["lr"] = group["initial_lr"] * share
    with torch.autocast(device.type, torch.bfloat16):
        head = model.head_weight if among is None else model.head_weight[among]
        logits = functional.linear(model.hidden(ids[:, :-1])[asked], head)
        extra = model.auxiliary_loss()
    targets = ids[:, 1:][asked]
    if among is not None:
        place = torch.empty(model.head_weight.shape[0], dtype=torch.int64, device=device)
        place[among] = torch.arange(len(among), device=device)
        targets = place[targets]
    loss = functional.cross_entropy(logits.float(), targets)
    (loss if extra is None else loss + extra).backward()
    for optimiser in optimisers:
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return float(loss.detach()), float((logits.detach().argmax(-1) == targets).float().mean())


# ---------------------------------------------------------------------------------------------------------------- lists


def lists(args: argparse.Namespace) -> None:
    """Trains NAME on lists at --rate, or the best finished one, with --seed, and writes outcome and weights, unless they are there."""
    torch.set_num_threads(1)
    rate = args.rate or chosen_rate(args.runs, args.name)
    path = args.runs / list_file(args.name, rate, args.seed)
    if not path.exists():
        train_lists(args, rate, path)


def train_lists(args: argparse.Namespace, rate: float, path: Path) -> None:
    """Trains on lists for --steps and writes the outcome to `path`, the weights beside it."""
    model = new_model(args.name, args.seed).to(args.device)
    begun, curve = time.process_time(), []
    for step, num_ids, loss, right, accuracy in learn_lists(model, rate, args.seed, args.steps):
        curve.append([step, num_ids, round(loss, 4), round(right, 4), *(round(share, 4) for share in accuracy)])
        print(args.name, rate, args.seed, curve[-1], file=sys.stderr, flush=True)
    outcome = {
        "architecture": args.name,
        "rate": rate,
        "seed": args.seed,
        "planned_steps": args.steps,
        "steps": curve[-1][0],
        "learnt": any(min(point[-2:]) >= LEARNT for point in curve),
        "ids": curve[-1][1],
        "loss": curve[-1][2],
        "accuracy": {str(pairs): round(list_accuracy(model, pairs, 64), 4) for pairs in TEST_PAIRS},
        "cpu_seconds": round(time.process_time() - begun),
        "machine": machine(),
        "torch": torch.__version__,
        "curve": curve,
    }
    save(path.with_suffix(".pt"), {"model": model.state_dict()})
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(outcome) + "\n")


def learn_lists(model: LanguageModel, rate: float, seed: int, steps: int) -> Iterator[tuple[int, int, float, float, list[float]]]:
    """Trains on lists of the first ids, of all once these are answered, and over the last steps, once all are, at a falling rate.

    Yields, every LISTS_MEASURED_EVERY steps, the number of steps so far, that of ids, the mean loss and accuracy since the last time,
    and the accuracies on test lists of all ids.
    """
    made, rng, ids, average, results = optimisers(model, rate), np.random.default_rng(seed), LIST_IDS[:FIRST_IDS], 0.0, []
    last = steps
    for step in range(1, steps + 1):
        rows = make_lists(rng, BATCH * CONTEXT // LIST_LENGTH, LIST_LENGTH, PAIRS, len(ids))
        share = min(step / WARM_UP_STEPS, max(FLOOR, (last + 1 - step) / LAST_STEPS), 1.0)
        results.append(learn(model, made, rows, share, torch.from_numpy(ids)))
        average = MEMORY * average + (1 - MEMORY) * results[-1][1]
        if step % LISTS_MEASURED_EVERY == 0 or step == last:
            accuracy = [list_accuracy(model, pairs) for pairs in TEST_PAIRS]
            yield step, len(ids), *np.mean(results, axis=0).tolist(), accuracy
            results.clear()
            last = min(last, step + LAST_STEPS) if min(accuracy) >= LEARNT else last
            if step == last or (step >= STUCK_STEPS and len(ids) == FIRST_IDS):
                return
        if average >= READY:
            ids = LIST_IDS


def list_file(name: str, rate: float, seed: int) -> str:
    """The file of an outcome in the folder of runs; its weights have the suffix .pt."""
    return f"lists-{name}-{rate:g}-{seed}.json"


def rates_of(name: str) -> tuple[float, ...]:
    """The multiples of the learning rates that an architecture is tried at, ascending."""
    return tuple(sorted((*RATES, *MORE_RATES.get(name, ()))))


def list_outcomes(runs: Path, name: str) -> list[dict[str, Any]]:
    """The finished list runs of an architecture, by seed and rate."""
    found = [json.loads(path.read_text()) for path in runs.glob(f"lists-{name}-[0-9]*.json")]
    return sorted(found, key=lambda run: (run["seed"], run["rate"]))


def chosen_rate(runs: Path, name: str) -> float:
    """The rate that is best for the first seed: of those that learnt the lists the fastest, else the most accurate.

    Raises SystemExit where rates are missing.
    """
    found = [run for run in list_outcomes(runs, name) if run["seed"] == SEEDS[0]]
    if missing := sorted(set(rates_of(name)) - {run["rate"] for run in found}):
        raise SystemExit(f"{name}: lists at {', '.join(map(str, missing))} are missing in {runs}: run `all`, or `lists {name}` at these")
    return float(max(found, key=merit)["rate"])


def merit(run: dict[str, Any]) -> tuple[Any, ...]:
    """Sorts outcomes of lists, the best last: learnt and in how few steps, else mean accuracy in steps of half a percent, ids, loss."""
    accuracy = sum(run["accuracy"].values()) / len(run["accuracy"])
    return (run["learnt"], -run["steps"] if run["learnt"] else 0, round(accuracy * 200), run["ids"], -run["loss"])


# ----------------------------------------------------------------------------------------------------------------- text


class Run:
    """One model that learns text: weights, optimisers, its step, and its measurements."""

    def __init__(self, name: str, rate: float, folder: Path, windows: np.ndarray, held_out: np.ndarray, tokens: int, device: str) -> None:
        self.name, self.rate, self.path, self.device = name, rate, folder / f"{name}.pt", torch.device(device)
        self.model = new_model(name, SEED).to(self.device)
        self.optimisers = optimisers(self.model, rate)
        self.num_steps, self.step, self.seconds = num_steps(tokens), 0, 0.0
        self.windows, self.held_out = windows, HeldOut(held_out, windows[: rows_before(self.num_steps)])
        self.data_digest = digest_windows(windows)
        self.curve: list[dict[str, float]] = []

    def start_from(self, path: Path) -> None:
        """Starts with the weights that learnt lists, and new optimisers."""
        self.model.load_state_dict(torch.load(path, map_location=self.device, weights_only=True)["model"])

    def save(self) -> None:
        """Saves everything needed to resume, atomically."""
        progress = {"step": self.step, "seconds": self.seconds, "curve": self.curve, "num_steps": self.num_steps, "rate": self.rate}
        states = [optimiser.state_dict() for optimiser in self.optimisers]
        save(self.path, {"model": self.model.state_dict(), "optimisers": states, "progress": progress, "data": self.data_digest})

    def restore(self) -> bool:
        """Restores the saved run, if there is one, and returns whether.

        Raises SystemExit for a run of another length or rate, and for one on other data.
        """
        if not self.path.exists():
            return False
        saved = torch.load(self.path, map_location=self.device, weights_only=True)
        progress = saved["progress"]
        if progress["num_steps"] != self.num_steps:
            raise SystemExit(f"{self.path} is of a run of {progress['num_steps']:,} steps, not {self.num_steps:,}: choose other --runs")
        if progress["rate"] != self.rate:
            raise SystemExit(f"{self.path} was trained at a rate of {progress['rate']:g}, not {self.rate:g}: choose other --runs")
        if saved["data"] != self.data_digest:
            raise SystemExit(f"{self.path} was trained on other windows than those of --data: choose other --runs")
        self.model.load_state_dict(saved["model"])
        for optimiser, state in zip(self.optimisers, saved["optimisers"], strict=True):
            optimiser.load_state_dict(state)
        self.step, self.seconds, self.curve = progress["step"], progress["seconds"], progress["curve"]
        return True

    def advance(self) -> float:
        """One step. Returns its loss in nats per prediction."""
        loss, _ = learn(self.model, self.optimisers, text_rows(self.windows, self.step, PAIRS), self._learning_share())
        self.step += 1
        return loss

    def _learning_share(self) -> float:
        left = (self.num_steps - self.step) / (DECAY_SHARE * self.num_steps)
        return min((self.step + 1) / WARM_UP_STEPS, 1.0) * max(FLOOR, min(1.0, left))

    def measure(self) -> dict[str, float]:
        """Adds the losses on held-out windows and the accuracies on lists to the curve."""
        accuracy = {f"lists_{pairs}": round(list_accuracy(self.model, pairs), 4) for pairs in TEST_PAIRS}
        tokens = rows_before(self.step) * CONTEXT
        self.curve.append({"tokens": tokens, "cpu_seconds": round(self.seconds, 1), **self.held_out.losses(self.model), **accuracy})
        return self.curve[-1]


def save(path: Path, value: dict[str, Any]) -> None:
    """Saves a file for torch.load, atomically."""
    with replacing(path) as temporary:
        torch.save(value, temporary)


def text(args: argparse.Namespace) -> None:
    """Trains NAME on --tokens of text, from its best weights on lists, or resumes; at the end measures it and writes the outcome."""
    torch.set_num_threads(1)
    path = args.runs / f"text-{args.name}.json"
    if path.exists():
        return
    run = open_run(args)
    if not run.restore():
        run.start_from(list_weights(args, run.rate))
        run.measure()
    for loss in steps(run):
        if not np.isfinite(loss):
            raise SystemExit(f"{run.name}: the loss is {loss} at step {run.step}: choose another rate")
    outcome = {
        "architecture": run.name,
        "rate": run.rate,
        "steps": run.step,
        "cpu_seconds": round(run.seconds),
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "machine": machine(),
        "torch": torch.__version__,
        "recall": run.held_out.recall(run.model),
        "curve": run.curve,
    }
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(outcome) + "\n")


def list_weights(args: argparse.Namespace, rate: float) -> Path:
    """The weights that learnt lists at a rate; trained again where only the outcome is known (`zoo_results.py restore`)."""
    path = args.runs / list_file(args.name, rate, SEEDS[0])
    weights = path.with_suffix(".pt")
    if not weights.exists():
        steps = json.loads(path.read_text())["planned_steps"]
        train_lists(argparse.Namespace(name=args.name, seed=SEEDS[0], steps=steps, device=args.device), rate, path)
    return weights


def open_run(args: argparse.Namespace) -> Run:
    """The run on text of a command line, at the rate that is best on lists. Raises SystemExit where there are too few windows."""
    windows, held_out = np.load(args.data / "windows.npy", mmap_mode="r"), np.load(args.data / "held_out.npy")
    if rows_before(num_steps(args.tokens)) > len(windows):
        raise SystemExit(f"{args.data} has {len(windows) * CONTEXT:,} tokens: prepare more, or train on fewer")
    return Run(args.name, chosen_rate(args.runs, args.name), args.runs, windows, held_out, args.tokens, args.device)


def steps(run: Run) -> Iterator[float]:
    """Trains to the end, saving and measuring on the way; yields the loss of each step. Seconds are of the CPU, without measurements."""
    saved, every = time.monotonic(), max(1, num_steps(MEASURED_EVERY_TOKENS))
    while run.step < run.num_steps:
        begun = time.process_time()
        yield run.advance()
        run.seconds += time.process_time() - begun
        is_last = run.step == run.num_steps
        if run.step % every == 0 or is_last:
            print(run.name, json.dumps(run.measure()), file=sys.stderr, flush=True)
        if is_last or time.monotonic() - saved > SAVED_EVERY_SECONDS:
            run.save()
            saved = time.monotonic()


# ---------------------------------------------------------------------------------------------------------- all of them


def run_all(args: argparse.Namespace) -> None:
    """Works through all pieces of the named models that have not finished, --workers at once: rates, then seeds, then text."""
    args.runs.mkdir(parents=True, exist_ok=True)
    where = ["--runs", str(args.runs)]
    stages = [
        [["lists", name, "--rate", f"{rate:g}", "--steps", str(args.steps), *where] for rate, name in by_rates(args.names)],
        [["lists", name, "--seed", str(seed), "--steps", str(args.steps), *where] for seed in SEEDS[1:] for name in args.names],
        [["text", name, "--data", str(args.data), "--tokens", str(args.tokens), *where] for name in args.names],
    ]
    print(estimate(args.names, args.steps, args.tokens), file=sys.stderr, flush=True)
    for stage in stages:
        with ThreadPoolExecutor(args.workers) as pool:
            statuses = list(pool.map(functools.partial(run_piece, args.runs), stage))
        failed = [piece for piece, status in zip(stage, statuses, strict=True) if status]
        if failed:
            print(f"failed: {[' '.join(piece[:4]) for piece in failed]}, see {args.runs}/log.txt", file=sys.stderr)


def by_rates(names: list[str]) -> list[tuple[float, str]]:
    """The rates and names of the first seed's list runs: every architecture at the recipe's rate first, then at those next to it."""
    pieces = [(rate, name) for name in names for rate in rates_of(name)]
    return sorted(pieces, key=lambda piece: (abs(math.log2(piece[0])), piece[0]))


def run_piece(runs: Path, piece: list[str]) -> int:
    """Runs one piece in a process of its own, whose output goes to log.txt. Returns its exit status."""
    with (runs / "log.txt").open("a") as log:
        return subprocess.run([sys.executable, __file__, *piece], stdout=log, stderr=log, check=False).returncode


def estimate(names: list[str], list_steps: int, tokens: int) -> str:
    """How long the pieces take at most, if no lists are learnt early: from a few steps of each architecture."""
    torch.set_num_threads(1)
    hours = {"lists": 0.0, "text": 0.0}
    rng = np.random.default_rng(SEED)
    for name in names:
        model = new_model(name, SEED)
        made = optimisers(model, 0.0)
        a_list = make_lists(rng, BATCH * CONTEXT // LIST_LENGTH, LIST_LENGTH, PAIRS)
        a_text = Rows(rng.integers(1, zoo.VOCAB_SIZE, (BATCH, CONTEXT + 1)), np.ones((BATCH, CONTEXT), bool))
        num_lists = list_steps * (len(rates_of(name)) + len(SEEDS) - 1)
        for kind, rows, num in (("lists", a_list, num_lists), ("text", a_text, num_steps(tokens))):
            seconds = []
            for _ in range(4):
                begun = time.process_time()
                learn(model, made, rows, 0.0)
                seconds.append(time.process_time() - begun)
            hours[kind] += min(seconds) * num / 3600
    return f"at most {hours['lists']:.1f} hours of one core on lists, {hours['text']:.1f} on text; measuring takes about a fifth more"


# -------------------------------------------------------------------------------------------------------------- shipping


def export(args: argparse.Namespace) -> None:
    """Writes config.json, model.safetensors (float16) and card.json of each finished model into a folder of its own.

    Raises SystemExit, and writes nothing of that model, where a weight overflows in float16.
    """
    from safetensors.torch import save_file

    manifest = json.loads((args.data / "manifest.json").read_text())
    for name in args.names:
        if not (args.runs / f"text-{name}.json").exists():
            print(f"{name} has not finished", file=sys.stderr)
            continue
        saved = torch.load(args.runs / f"{name}.pt", map_location="cpu", weights_only=True)
        weights = {key: value.half().contiguous() for key, value in saved["model"].items()}
        if beyond := [key for key, value in weights.items() if not value.isfinite().all()]:
            raise SystemExit(f"{name}: weight {beyond[0]} is not finite in float16 ({len(beyond)} such in total): train the model again")
        folder = args.to / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file(weights, folder / zoo.WEIGHTS)
        (folder / zoo.CONFIG).write_text(zoo.config_json(zoo.architecture(name, zoo.SHIPPED_SIZE)))
        (folder / zoo.CARD).write_text(json.dumps(card(args.runs, name, manifest), indent=2) + "\n")


def card(runs: Path, name: str, manifest: dict[str, Any]) -> dict[str, Any]:
    """The model card: how the weights were trained, everything that was tried, and what they recall."""
    trained = json.loads((runs / f"text-{name}.json").read_text())
    return {
        "tokens": rows_before(trained["steps"]) * CONTEXT,
        "context": CONTEXT,
        "steps": trained["steps"],
        "batch_tokens": BATCH * CONTEXT,
        "list_rows_share": 1 / (BATCH * LIST_EVERY),
        "rate": trained["rate"],
        "learning_rates": {"matrices": trained["rate"] * MATRIX_LEARNING_RATE, "other": trained["rate"] * LEARNING_RATE},
        "cpu_seconds": trained["cpu_seconds"],
        "date": trained["date"],
        "machine": trained["machine"],
        "torch": trained["torch"],
        "seed": SEED,
        "text": manifest,
        "recall": trained["recall"],
        "curve": trained["curve"],
        "lists": {
            "ids_per_row": LIST_LENGTH,
            "pairs": PAIRS,
            "tokens_per_step": BATCH * CONTEXT,
            "columns_of_curves": ["step", "ids", "loss", "accuracy", *(f"test accuracy of {pairs} pairs" for pairs in TEST_PAIRS)],
            "runs": list_outcomes(runs, name),
        },
    }


def machine() -> str:
    """The GPU, or the processor."""
    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())


def main() -> None:
    """Parses the command line and runs its command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    made = {}
    for name, command in {"prepare": prepare, "lists": lists, "text": text, "all": run_all, "export": export, "count": count}.items():
        made[name] = commands.add_parser(name, help=(command.__doc__ or "").splitlines()[0])
        made[name].set_defaults(run=command)
        if name != "lists":
            made[name].add_argument("--data", type=Path, required=True)
        if name in ("lists", "text", "all", "export"):
            made[name].add_argument("--runs", type=Path, required=True)
        if name in ("lists", "text"):
            made[name].add_argument("name", choices=NAMES)
        if name in ("all", "export"):
            made[name].add_argument("names", nargs="*", default=NAMES)
        if name in ("export", "count"):
            made[name].add_argument("--to", type=Path, required=True)
        if name in ("text", "all", "count"):
            made[name].add_argument("--tokens", type=int, required=True)
        if name in ("lists", "all"):
            made[name].add_argument("--steps", type=int, default=LIST_STEPS)
    made["lists"].add_argument("--rate", type=float, help="the best of the finished ones where none is given")
    made["lists"].add_argument("--seed", type=int, default=SEEDS[0])
    for name in ("lists", "text"):
        made[name].add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    made["all"].add_argument("--workers", type=int, default=1)
    made["prepare"].add_argument("--shards", nargs="*", default=[])
    made["prepare"].add_argument("--leave-out", nargs="*", default=[])
    made["prepare"].add_argument("--demo-share", type=float, default=0.7)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
