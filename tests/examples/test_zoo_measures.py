"""What the zoo's models are measured on: readings of what is asked for, classes of held-out tokens, recall of who can and who cannot."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from recallkit.models import zoo


class Table:
    """In place of a model: logits that depend on the latest id alone."""

    def __init__(self, logits):
        self.logits = logits
        self.head_weight = torch.eye(logits.shape[1])

    def parameters(self):
        return iter([self.logits])

    def hidden(self, ids):
        return self.logits[ids]


class Copying(Table):
    """In place of a model: what followed the latest id where it was first.

    Ids are codes of 128 signs, whose products with each other are small beside 1: far narrower than the vocabulary.
    """

    def __init__(self, vocab):
        super().__init__(torch.zeros(1, 1))
        signs = torch.randint(0, 2, (vocab, 128), generator=torch.Generator().manual_seed(0))
        self.head_weight = (2.0 * signs - 1) / 128**0.5

    def hidden(self, ids):
        states = torch.zeros(*ids.shape, 128)
        for row, values in enumerate(ids.tolist()):
            after = {}
            for i, value in enumerate(values):
                if value in after:
                    states[row, i] = 50 * self.head_weight[after[value]]
                if i + 1 < len(values):
                    after.setdefault(value, values[i + 1])
        return states


def test_held_out_tokens_are_told_apart_by_counts_in_training_and_by_repetition(zoo_measures):
    """(1, 2) stood five times in training and is rare, (3, 4) stood six times; both stand twice in a held-out window."""
    training = np.zeros((1, 257), np.uint16)
    training[0, 10:20] = [1, 2] * 5
    training[0, 30:42] = [3, 4] * 6
    held_out = np.full((1, 257), 9, np.uint16)
    for pair, places in (((1, 2), (50, 70)), ((3, 4), (90, 110))):
        for place in places:
            held_out[0, place : place + 2] = pair
    measured = zoo_measures.HeldOut(held_out, training)
    # Bigrams around the pairs, and the run of nines, are rare as well: never seen in training.
    target = {name: set(np.flatnonzero(where[0]) + 1) for name, where in measured.slices.items()}
    first_rare = {1, 50, 51, 52, 90, 92}
    assert target["first_rare"] == first_rare
    assert target["other"] == first_rare | {91, 111}
    assert target["ar_hit"] == set(range(1, 257)) - target["other"]
    logits = torch.randn(zoo.VOCAB_SIZE, 10, generator=torch.Generator().manual_seed(0))
    measured.copies.pop("copied_random")  # of ids that this table of ten has not
    losses, nll = measured.losses(Table(logits)), -logits.log_softmax(-1).numpy()[held_out[0, :-1], held_out[0, 1:]]
    for name, places in {"all": set(range(1, 257)), **target}.items():
        assert losses[name] == pytest.approx(nll[sorted(place - 1 for place in places)].mean(), abs=0.01), name


def test_who_copies_what_followed_recalls_everything(zoo_measures, monkeypatch):
    monkeypatch.setattr(zoo_measures, "ALL_PAIRS", (2, 64))
    monkeypatch.setattr(zoo_measures, "COPIES", 8)
    rows = np.stack([np.random.default_rng(i).permutation(300)[:257] for i in range(3)]).astype(np.uint16)
    twice = np.tile(rows[:1, :129], 2)[:, :257]  # so that there are hits to be measured
    measured = zoo_measures.HeldOut(np.concatenate([rows, twice]), np.zeros((1, 257), np.uint16))
    losses = measured.losses(Copying(zoo.VOCAB_SIZE))
    assert losses["copied_text"] == losses["ar_hit"] == pytest.approx(0, abs=1e-3)
    assert losses["copied_random"] < 2, "random ids happen to be there before, followed by others"
    assert losses["first_rare"] > np.log(zoo.VOCAB_SIZE)
    recall = measured.recall(Copying(zoo.VOCAB_SIZE))
    assert set(recall["lists"].values()) == set(recall["mqar"].values()) == {1.0}
    assert recall["copies"]["copied_text"] == 1.0
    assert recall["copies"]["copied_random"] > 0.9
