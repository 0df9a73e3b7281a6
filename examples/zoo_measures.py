"""What the zoo's models are measured on in training: recall in lists, in copied spans, and in held-out text. See `train_zoo.py`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from torch.nn import functional
from zoo_data import CONTEXT, make_lists, random_rows, repeat_spans

if TYPE_CHECKING:
    from recallkit.models.language_model import LanguageModel

RARE = 5
"""In the loss curves a bigram is rare if it occurs at most this often in the training tokens."""
TEST_PAIRS = (4, 16)
"""Numbers of pairs of the lists by which learning rates are chosen."""
ALL_PAIRS = (2, 4, 8, 16, 32, 64)
"""Numbers of pairs of a finished model's card."""
TEST_SEED = 1 << 20
"""Of test lists; those of training have other seeds."""
COPIES = 32
"""Rows with copied spans."""
_BATCH = 16


class Readings:
    """The NLL and whether the most likely id is right, of predictions that are asked for, flat."""

    def __init__(self, model: LanguageModel, ids: np.ndarray, asked: np.ndarray) -> None:
        """ids: (n, t + 1) int64, asked: (n, t) bool. The head is applied to what is asked for alone."""
        nll, right = [], []
        device = next(model.parameters()).device
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            for rows, wanted in zip(torch.from_numpy(ids).split(_BATCH), torch.from_numpy(asked).split(_BATCH), strict=True):
                inputs, where = rows[:, :-1].to(device), wanted.to(device)
                logits = functional.linear(model.hidden(inputs)[where], model.head_weight).float()
                targets = rows[:, 1:][wanted].to(device)
                nll.append(functional.cross_entropy(logits, targets, reduction="none").cpu())
                right.append((logits.argmax(-1) == targets).cpu())
        self.nll, self.right = torch.cat(nll).numpy(), torch.cat(right).numpy()


def list_accuracy(model: LanguageModel, pairs: int, num_rows: int = 16) -> float:
    """The share of requested values that are the most likely id, in test lists of CONTEXT predictions."""
    rng = np.random.default_rng([TEST_SEED, pairs])
    return float(Readings(model, *make_lists(rng, num_rows, CONTEXT, [pairs])).right.mean())


def mqar_accuracy(model: LanguageModel, pairs: int, num_rows: int = 64) -> float:
    """The same in Zoology's MQAR as `recallkit mqar` makes it: each key once more, most of them soon, and fillers between."""
    from recallkit.mqar.sequences import MqarTask, make_sequences, split_vocabulary
    from recallkit.text.tokenizers import load_tokenizer

    made = make_sequences(MqarTask(CONTEXT, pairs, 0.01, TEST_SEED), split_vocabulary(load_tokenizer(None)), range(num_rows))
    asked = np.zeros((num_rows, CONTEXT - 1), bool)
    np.put_along_axis(asked, made.places, True, axis=1)
    return float(Readings(model, made.ids, asked).right.mean())


class HeldOut:
    """Held-out windows with classes of tokens: AR hits, equally rare first occurrences; and copied spans of text and of random ids."""

    def __init__(self, windows: np.ndarray, training: np.ndarray) -> None:
        """windows: (n, t + 1), training: the windows whose bigrams are counted, (m, t + 1)."""
        self.ids = windows.astype(np.int64)
        seen = np.sort((training[:, :-1].astype(np.uint32) << 16 | training[:, 1:]).ravel())
        keys = (self.ids[:, :-1] << 16 | self.ids[:, 1:]).astype(np.uint32)
        rare = np.searchsorted(seen, keys, "right") - np.searchsorted(seen, keys, "left") <= RARE
        repeated = np.array([[key in row[:i] for i, key in enumerate(row)] for row in keys.tolist()])
        self.slices = {"ar_hit": rare & repeated, "first_rare": rare & ~repeated, "other": ~(rare & repeated)}
        self.copies = {"copied_text": self.ids[:COPIES].copy(), "copied_random": random_rows(COPIES)}
        self.asked = {name: repeat_spans(rows) for name, rows in self.copies.items()}

    def losses(self, model: LanguageModel) -> dict[str, float]:
        """Mean NLL in nats of each class of tokens, and of the ids of copied spans except the first of each."""
        nll = Readings(model, self.ids, np.ones_like(self.ids[:, 1:], bool)).nll.reshape(self.ids.shape[0], -1)
        found = {"all": nll.mean(), **{name: nll[where].mean() for name, where in self.slices.items()}}
        found |= {name: Readings(model, rows, self.asked[name]).nll.mean() for name, rows in self.copies.items()}
        return {name: round(float(value), 4) for name, value in found.items()}

    def recall(self, model: LanguageModel) -> dict[str, dict[str, float]]:
        """Accuracies of a finished model: of lists and of MQAR by number of pairs, and of both kinds of copied spans."""
        pairs = {
            "lists": {str(num): list_accuracy(model, num, 32) for num in ALL_PAIRS},
            "mqar": {str(num): mqar_accuracy(model, num) for num in ALL_PAIRS},
            "copies": {name: float(Readings(model, rows, self.asked[name]).right.mean()) for name, rows in self.copies.items()},
        }
        return {kind: {name: round(value, 4) for name, value in found.items()} for kind, found in pairs.items()}
