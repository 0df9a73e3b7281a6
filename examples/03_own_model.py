"""A model of your own, from its definition to its gap: a layer of gated linear recurrence in plain
PyTorch.

    python examples/03_own_model.py                                       # trains it, about a
    minute on two cores recallkit score examples/03_own_model.py:load recallkit gap control:recall
    examples/03_own_model.py:load

recallkit calls `load` and needs no more than a module that maps ids (b, t) to logits (b, t, vocab).
The rest shows useful options: with `hidden` and `head` the logits of a whole batch are never
materialised, `FILES` lets recallkit detect a change of the weights, and where there are none yet a
one-line error says what to do.

    h_t = f_t h_{t-1} + (1 - f_t) v_t           f_t = sigmoid(W_f x_t)        v_t = W_v x_t
    channel by channel y_t = x_t + W_o (h_t silu(W_g x_t))         logits = U y_t + log p1

Its state has a fixed size, so it must forget: recallkit measures how much of its gap to attention
lies where that matters.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from recallkit import config
from recallkit.errors import UserError

if TYPE_CHECKING:
    from recallkit.models.plan import ModelPlan

WIDTH = 128
NUM_STEPS, SEQUENCES, SEQ_LEN = 300, 16, 128
LEARNING_RATE = 4e-3


class GatedRecurrence(nn.Module):
    """The model above: ids to logits, which is all that recallkit asks for."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.vocab_size = vocab_size
        self.embedding = nn.Embedding(vocab_size, width)
        self.norm = nn.RMSNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width, bias=False)
        self.head = nn.Linear(width, vocab_size)

    def hidden(self, ids: Tensor) -> Tensor:
        """States (b, t, width) of ids (b, t)."""
        x: Tensor = self.embedding(ids)
        forget, value, gate = self.mix(self.norm(x)).chunk(3, dim=-1)
        forget = torch.sigmoid(forget)
        state = scan(forget, (1 - forget) * value)
        return x + self.out(state * functional.silu(gate))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (b, t, vocab) of ids (b, t)."""
        logits: Tensor = self.head(self.hidden(ids))
        return logits


def scan(decay: Tensor, inputs: Tensor) -> Tensor:
    """h_t = decay_t h_{t-1} + inputs_t, all (b, t, width): each round combines spans of twice the
    length."""
    span = 1
    while span < inputs.shape[1]:
        inputs = torch.cat(
            [inputs[:, :span], inputs[:, span:] + decay[:, span:] * inputs[:, :-span]], dim=1
        )
        decay = torch.cat([decay[:, :span], decay[:, span:] * decay[:, :-span]], dim=1)
        span *= 2
    return inputs


# ----------------------------------------------------------------------------- what recallkit calls


def weights_path() -> Path:
    """Next to this file, as in a folder made with --out; else in recallkit's cache folder."""
    beside = Path(__file__).with_suffix(".safetensors")
    return beside if beside.exists() else config.home() / "examples" / beside.name


FILES = [path for path in [weights_path()] if path.exists()]


def load(plan: ModelPlan) -> nn.Module:
    """The trained model. recallkit moves it to the requested device and dtype.

    Raises UserError where it is not trained yet.
    """
    if not FILES:
        raise UserError(
            "it has no weights yet", where=plan.location, remedy=f"train it: python {__file__}"
        )
    weights = load_file(FILES[0])
    model = GatedRecurrence(*weights["embedding.weight"].shape)
    model.load_state_dict(weights)
    return model


# ----------------------------------------------------------------------------------------- training


def training_ids() -> tuple[Tensor, int]:
    """The training part of the built-in text as one stream of ids, int64 (n,), and the size of the
    vocabulary."""
    from recallkit.text.corpus import open_corpus
    from recallkit.text.encoding import encode_documents
    from recallkit.text.records import join_documents
    from recallkit.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(None)
    encoded = encode_documents(open_corpus(["demo:train"]).documents(), tokenizer)
    stream = [join_documents(documents, tokenizer.end_token_id, "pack")[0] for documents in encoded]
    return torch.from_numpy(np.concatenate(stream).astype(np.int64)), tokenizer.vocab_size


@torch.no_grad()
def start_from_bigrams(model: GatedRecurrence, ids: Tensor) -> None:
    """Sets embedding and head so that head(embedding(u)) is a low-rank log p(w | u): a minute is
    too short to learn that.

    p is Witten-Bell's bigram model, as in control:bigram; log p - log p1 is factored with frequent
    tokens weighing more.
    """
    vocab, width = model.embedding.weight.shape
    single = (torch.bincount(ids, minlength=vocab) + 1).float()
    single /= single.sum()
    pairs = (
        torch.bincount(ids[:-1] * vocab + ids[1:], minlength=vocab**2).view(vocab, vocab).float()
    )
    distinct = (pairs > 0).sum(1, keepdim=True)
    gain = (
        ((pairs + distinct * single) / (pairs.sum(1, keepdim=True) + distinct) / single)
        .log()
        .nan_to_num(0.0)
    )
    weight = (single * vocab).sqrt().clamp(min=0.05)
    left, sizes, right = torch.svd_lowrank(weight[:, None] * gain * weight, q=width)
    model.embedding.weight.copy_(left * sizes.sqrt() / weight[:, None])
    model.head.weight.copy_(right * sizes.sqrt() / weight[:, None])
    model.head.bias.copy_(single.log())
    model.mix.bias[:width] = torch.linspace(
        -2, 5, width
    )  # time constants of one to some 150 tokens
    model.out.weight.zero_()


def train(ids: Tensor, vocab_size: int) -> GatedRecurrence:
    """Trains on random windows of the stream, the same on every run; progress goes to stderr."""
    torch.manual_seed(0)
    model = GatedRecurrence(vocab_size, WIDTH)
    start_from_bigrams(model, ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, LEARNING_RATE, total_steps=NUM_STEPS, pct_start=0.1
    )
    for step in range(NUM_STEPS):
        starts = torch.randint(len(ids) - SEQ_LEN - 1, (SEQUENCES, 1))
        batch = ids[starts + torch.arange(SEQ_LEN + 1)]
        loss = functional.cross_entropy(model(batch[:, :-1]).flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if sys.stderr.isatty() or (step + 1) % 50 == 0:
            end = " " if sys.stderr.isatty() else "\n"
            sys.stderr.write(f"\rstep {step + 1} of {NUM_STEPS}, {loss.item():.2f} nats{end}")
    sys.stderr.write("\n")
    return model


def main() -> None:
    """Parses the command line, trains, saves, and prints the next command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out",
        type=Path,
        help="a folder for a copy of this file with its weights; without it they go to the cache",
    )
    out = parser.parse_args().out
    script = Path(__file__)
    weights = (out or config.home() / "examples") / script.with_suffix(".safetensors").name
    weights.parent.mkdir(parents=True, exist_ok=True)
    model = train(*training_ids())
    save_file(model.state_dict(), weights)
    if out is not None:
        script = Path(shutil.copy(script, out))
    print(f"{weights}: {sum(p.numel() for p in model.parameters()):,} parameters")
    print(f"recallkit gap control:recall {script}:load")


if __name__ == "__main__":
    main()
