"""Models with set weights answer every query of MQAR, in any form of the model, and are models like
any other."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.models.constructions import CONSTRUCTIONS
from recallkit.models.loading import check_model, identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.mqar.run import evaluate_mqar
from recallkit.mqar.sequences import MqarTask, Vocabulary, ask, make_sequences
from recallkit.options import MqarOptions
from recallkit.text.special_tokens import Prefix

each_construction = pytest.mark.parametrize("name", CONSTRUCTIONS)


@st.composite
def tasks(draw) -> tuple[MqarTask, Vocabulary, Prefix]:
    """A task with a vocabulary of 2 P + 2 ids or more, of which any one is the filler, and may be
    read before every sequence."""
    pairs = draw(st.integers(1, 12))
    length = draw(st.integers(4 * pairs, 4 * pairs + 40))
    power = draw(st.sampled_from([0.01, 0.1, 1.0, 10.0]))
    ids = np.random.default_rng(draw(st.integers(0, 9))).permutation(
        draw(st.integers(2 * pairs + 2, 300)),
    )
    prefix = Prefix((int(ids[0]),) * draw(st.integers(0, 1)))
    return (
        MqarTask("mqar", length, pairs, draw(st.integers(0, 99)), {"power": power}),
        Vocabulary(ids),
        prefix,
    )


@each_construction
@given(operands=tasks(), dtype=st.sampled_from(["float32", "bfloat16", "float16"]))
@settings(max_examples=10)
def test_every_query_is_answered_whatever_the_task(name, operands, dtype):
    task, vocabulary, prefix = operands
    model = load_model(
        ModelPlan(
            ModelSpec(f"construct:{name}"),
            len(vocabulary.ids),
            prefix=prefix,
            dtype=dtype,
            device="cpu",
        ),
    )
    answers = ask(model, make_sequences(task, vocabulary, 3), 4096)
    assert answers.right.all()
    assert (answers.rank == 0).all()
    assert answers.nll.max() < 1e-5


@each_construction
def test_keys_that_were_not_shown_are_not_answered(name):
    """The answer is looked up in the context: with another value beside the key it is that one,
    without the key none is sure."""
    model = CONSTRUCTIONS[name](64)
    shown, other = torch.tensor([[7, 40, 9, 41, 0, 9]]), torch.tensor([[7, 41, 9, 40, 0, 9]])
    for ids in (shown, other):
        assert int(model(ids)[0, -1].argmax()) == int(ids[0, 3])
    unknown = torch.log_softmax(model(torch.tensor([[7, 40, 9, 41, 0, 12]]))[0, -1], dim=-1)
    assert unknown[[40, 41]].max() < -1e-3


def test_it_is_asked_by_the_command_as_any_model(home, tmp_path):
    names = [f"construct:{name}" for name in CONSTRUCTIONS]
    tables, _ = evaluate_mqar(
        names,
        [4, 16],
        tmp_path,
        MqarOptions(seq_len=64, samples=8, device="cpu", batch_tokens=1024),
    )
    assert tables.mqar["accuracy"].to_list() == [1.0] * 4
    assert tables.mqar["ar_ppl"].max() < 1.0001
    assert set(tables.mqar["model"]) == set(names)


def test_an_unknown_construction_is_refused():
    for act in (identify_model, load_model, check_model):
        with pytest.raises(UserError, match="nothing") as caught:
            act(ModelPlan(ModelSpec("construct:nothing"), 16))
        assert "\n" not in str(caught.value)
