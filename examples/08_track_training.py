"""Trains a small model and follows its recall: two layers of attention, on the built-in text and on
lists of keys and values.

    python examples/08_track_training.py --out track --steps 600

In a few minutes of one core its recall of rare bigrams appears, while its predictions of other
tokens improve from the first step on; `recallkit report track` draws the curve.
`--checkpoint-every` also saves checkpoints for `recallkit track`. The two lines that any training
loop needs are marked.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional

import recallkit
from recallkit.models.architecture import ArchitectureConfig, LayerConfig
from recallkit.models.language_model import LanguageModel
from recallkit.models.zoo import CONTEXT, VOCAB_SIZE, config_json
from recallkit.synthetic.tasks import NOT_ASKED
from recallkit.text.corpus import open_corpus
from recallkit.text.tokenizers import load_tokenizer
from recallkit.training.lists import list_ids, make_lists

if TYPE_CHECKING:
    from collections.abc import Iterator

SEED = 0
PAIRS = (4, 8)
LIST_LENGTH = 64
FEW_IDS = 256
"""Lists are of so many different ids during the first fifth of the training, then of all."""


def stream(documents: int | None) -> np.ndarray:
    """The ids of the first documents of the built-in text, each preceded by the end token."""
    tokenizer = load_tokenizer(None)
    texts = [document.text for document in open_corpus(["demo:train"]).documents()][:documents]
    encoded = tokenizer.backend.encode_batch(texts, add_special_tokens=False)
    return np.concatenate([[tokenizer.end_token_id, *each.ids] for each in encoded])


def batches(
    ids: np.ndarray, rows: int, lists: int, steps: int
) -> Iterator[list[tuple[torch.Tensor, torch.Tensor]]]:
    """For each step text (rows, CONTEXT) and lists (lists, LIST_LENGTH), each with its targets."""
    rng, all_ids = np.random.default_rng(SEED), list_ids(VOCAB_SIZE)
    for step in range(steps):
        starts = rng.integers(0, len(ids) - CONTEXT - 1, rows)
        text = torch.from_numpy(np.stack([ids[start : start + CONTEXT + 1] for start in starts]))
        made = make_lists(
            rng, lists, LIST_LENGTH, PAIRS, all_ids[:FEW_IDS] if step < steps // 5 else all_ids
        )
        yield [(text[:, :-1], text[:, 1:]), made]


def make_model(mixers: list[str], width: int) -> LanguageModel:
    """A language model of these mixers, attention with short convolutions, from SEED; small
    embeddings, as the head is theirs."""
    torch.manual_seed(SEED)
    model = LanguageModel(
        ArchitectureConfig(
            VOCAB_SIZE,
            width,
            tuple(
                LayerConfig(mixer, {"short_conv": 3} if mixer == "attention" else {})
                for mixer in mixers
            ),
        )
    )
    torch.nn.init.normal_(model.embedding.weight, std=0.02)
    return model


def save(model: LanguageModel, folder: Path) -> None:
    """Writes a checkpoint that `recallkit` scores by its path."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: value.contiguous() for name, value in model.state_dict().items()},
        folder / "model.safetensors",
    )
    (folder / "config.json").write_text(config_json(model.config))


def train(args: argparse.Namespace) -> None:
    """Trains, and logs recall at step 0 and every --every steps."""
    model = make_model(args.mixers, args.width)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=args.learning_rate, betas=(0.9, 0.95), weight_decay=0.01
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * min(1.0, 2 * (1 - step / args.steps))
    )
    tracker = recallkit.Tracker(
        sample_tokens=args.sample_tokens, out=args.out, force=True
    )  # the first line
    for step, parts in enumerate(
        batches(stream(args.documents), args.rows, args.lists, args.steps)
    ):
        if step % args.every == 0:
            tell(step, tracker.log(step, model))  # the second line
            if args.checkpoint_every and step % args.checkpoint_every == 0:
                save(model, args.out / f"checkpoint-{step}")
        optimizer.zero_grad()
        for ids, targets in parts:
            functional.cross_entropy(
                model(ids).flatten(0, 1), targets.flatten(), ignore_index=NOT_ASKED
            ).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    tell(args.steps, tracker.log(args.steps, model))


def tell(step: int, metrics: dict[str, float]) -> None:
    """A line a step."""
    gain, hits, first, other = (
        metrics[f"recall/{name}"] for name in ("gain", "ar_nll", "first_nll", "other_nll")
    )
    nlls = f"NLL of AR hits {hits:.2f}, first occurrences {first:.2f}, other {other:.2f}"
    print(f"step {step}: recall gain {gain:z.1f} points; {nlls}", flush=True)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("track"))
    parser.add_argument("--mixers", nargs="+", default=["attention", "attention"])
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument(
        "--rows", type=int, default=4, help="windows of text a step, each of 256 predictions"
    )
    parser.add_argument(
        "--lists", type=int, default=48, help="lists a step, each of 64 predictions"
    )
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--documents", type=int, help="read so many of the text; all if not given")
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--checkpoint-every", type=int, default=0)
    parser.add_argument("--sample-tokens", type=int, default=20_000)
    train(parser.parse_args())


if __name__ == "__main__":
    main()
