"""What is said of models of which it is known whether they recall: one that gives weight to what is
present does not."""

from __future__ import annotations

import polars as pl
import pytest

import recallkit
from recallkit.mqar.run import evaluate_mqar, task_of
from recallkit.mqar.sequences import make_sequences, vocabulary_of
from recallkit.mqar.tables import MqarTables
from recallkit.mqar.view import MqarView, answer, mqar_tables
from recallkit.options import MqarOptions
from recallkit.text.tokenizers import load_tokenizer
from tests.known_truth import PATH

VALUES, LAST_THIRD = 4095 // 2, 2 * (4095 // 3)
"""The lowest id of values, of the 4,095 of the built-in tokenizer."""


def test_presence_is_not_said_to_recall_and_a_cache_is(home, tmp_path):
    """Of 4 values that are in the context a model without any association still hits one in four,
    and so does a guess."""
    models = [f"{name}={PATH}:{name}" for name in ("presence", "bigram_cache", "bigram")]
    known = {
        "seq_len": 64,
        "pairs": [4],
        "samples": 30,
        "counts": recallkit.zoo_counts(),
        "batch_tokens": 1024,
    }
    for model, start in zip(
        models,
        (
            "is not shown to do better",
            "recalls 8",
            "is not shown to do better than guessing: 0.0 %",
        ),
        strict=True,
    ):
        name = model.partition("=")[0]
        assert answer(recallkit.eval_mqar(model, out=tmp_path, **known)).startswith(
            f"With 4 pairs in 64 ids, {name} {start}"
        )


GUESSER = """
import torch

def load(request):
    def logits(ids):
        \"\"\"A logit of 40 for any of the ids from FIRST on that were read, whatever precedes them.\"\"\"
        t = ids.shape[1]
        same = (ids[:, :, None] == ids[:, None, :]) & torch.ones(t, t, dtype=torch.bool).tril(-1)
        number = ((ids >= FIRST) & ~same.any(-1)).cumsum(1)
        drawn = ids.cumsum(1) * 7919 % 10007 % number.clamp(min=1)
        choice = ids.gather(1, torch.searchsorted(number, drawn + 1).clamp(max=t - 1))
        return torch.zeros(*ids.shape, 4096).scatter_(2, choice[..., None], 40.0)
    return logits
"""


@pytest.mark.parametrize(
    ("task", "length", "first_value", "guess"),
    [
        ("mqar", 64, VALUES, 1 / 9),
        ("mqar,filler=random", 64, VALUES, None),
        ("read_twice", 64, VALUES, 1 / 9),
        ("overwriting", 64, VALUES, 1 / 13),
        ("overwriting,updates=9", 64, VALUES, 1 / 18),
        ("distractors", 64, VALUES, None),
        ("compositional", 64, LAST_THIRD, 1 / 9),
        ("two_hops", 64, LAST_THIRD, 1 / 9),
        ("copying", 20, 0, None),
        ("set_disjointness", 64, 4, 1 / 60),
    ],
)
def test_the_guess_is_what_a_model_that_guesses_gets(
    home, tmp_path, task, length, first_value, guess
):
    """It knows which ids are values, and takes any that it has read; `guess` follows from the
    task's picture, and is counted sequence by sequence where draws decide it."""
    options = MqarOptions(seq_len=length, samples=100, task=task, batch_tokens=8192)
    vocabulary = vocabulary_of(load_tokenizer(None))
    first = 0 if first_value == 0 else int(vocabulary.ids[first_value])
    (tmp_path / "guesser.py").write_text(GUESSER.replace("FIRST", str(first)))
    guesser = f"guesser={tmp_path / 'guesser.py'}:load"
    tables, _ = evaluate_mqar([guesser], [9], tmp_path / "out", options)
    drawn = make_sequences(task_of(options, 9), vocabulary, 100)
    counted = [
        1 / len({id_ for id_ in ids[: place + 1] if id_ >= first})
        for ids, asked in zip(drawn.ids.tolist(), drawn.answers, strict=True)
        for place in asked.nonzero()[0]
    ]
    [row] = tables.mqar.to_dicts()
    assert row["guess"] == pytest.approx(sum(counted) / len(counted), abs=1e-9)
    assert row["guess"] == pytest.approx(guess or row["guess"], abs=1e-9)
    assert row["accuracy_low"] < row["guess"] < row["accuracy_high"]
    assert "is not shown to do better than guessing" in answer(tables)
    assert f"{100 * row['guess']:.1f}" == mqar_tables(tables)["accuracy"].rows[-1][1]


def made(
    accuracy: float,
    low: float | None,
    difference: float = 0.0,
    ends: tuple[float | None, float | None] = (None, None),
) -> MqarTables:
    """A reference that recalls so much with 4 pairs, and a model beside it."""
    usual = {
        "task": "mqar",
        "pairs": 4,
        "length": 64,
        "num_samples": 9,
        "power": 0.01,
        "guess": 0.25,
    }
    usual |= {"ar_ppl": 2.0, "filler_ppl": 2.0}
    first = {
        "model": "r",
        **usual,
        "accuracy": accuracy,
        "accuracy_low": low,
        "accuracy_high": None if low is None else accuracy + 0.1,
    }
    none = dict.fromkeys(
        ("accuracy_difference", "accuracy_difference_low", "accuracy_difference_high"), 0.0
    )
    differ = {
        "accuracy_difference": difference,
        "accuracy_difference_low": ends[0],
        "accuracy_difference_high": ends[1],
    }
    schema = {
        "accuracy_low": pl.Float64,
        "accuracy_high": pl.Float64,
        "accuracy_difference_low": pl.Float64,
        "accuracy_difference_high": pl.Float64,
    }
    other = {**first, "model": "m", "accuracy": accuracy + difference, **differ}
    return MqarTables(
        pl.DataFrame([{**first, **none}, other], schema_overrides=schema), pl.DataFrame()
    )


@pytest.mark.parametrize(
    ("accuracy", "low", "said"),
    [
        (0.5, 0.4, "recalls 50.0 % of the values (95 % interval 40.0 to 60.0 %); "),
        (
            0.3,
            0.2,
            (
                "is not shown to do better than guessing: 30.0 % of the values (95 % interval 20.0 "
                "to 40.0 %); "
            ),
        ),
        (
            0.5,
            None,
            "is not shown to do better than guessing: 50.0 % of the values (no interval); ",
        ),
    ],
)
def test_a_guess_stands_beside_what_is_recalled(accuracy, low, said):
    guess = "guessing among the values read so far gives 25.0 %"
    assert answer(made(accuracy, low)).startswith(f"With 4 pairs in 64 ids, r {said}{guess}; m ")
    table = mqar_tables(made(accuracy, low))["accuracy"]
    assert table.rows[-1] == ["a guess among them", "25.0"]
    assert ", query positions by a power law (0.01). Last row" in table.caption


@pytest.mark.parametrize(
    ("difference", "ends", "said"),
    [
        (-0.1, (-0.2, -0.05), "m 40.0 % (10.0 points fewer, 95 % interval 5.0 to 20.0)."),
        (0.1, (0.05, 0.2), "m 60.0 % (10.0 points more, 95 % interval 5.0 to 20.0)."),
        (
            -0.1,
            (-0.2, 0.05),
            "m 40.0 % (10.0 points fewer, not significant: 95 % interval -20.0 to +5.0).",
        ),
        (0.1, (None, None), "m 60.0 % (10.0 points more, no interval)."),
    ],
)
def test_a_difference_has_its_sign_and_whether_it_may_be_none(difference, ends, said):
    assert answer(made(0.5, 0.4, difference, ends)).endswith(f"; {said}")


def test_curves_of_models_that_recall_nothing_are_at_the_bottom(home, tmp_path):
    bigram = f"bigram={PATH}:bigram"
    known = {"seq_len": 64, "samples": 9, "counts": recallkit.zoo_counts(), "batch_tokens": 1024}
    tables = recallkit.eval_mqar(bigram, out=tmp_path, pairs=[4, 12], **known)
    assert tables.mqar["accuracy"].max() == 0
    assert MqarView(tmp_path, tables).terminal_tables()[0].rows[0][-1] == "▁▁"
