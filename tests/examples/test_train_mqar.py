"""Training on MQAR: examples obey the definition, states are counted right, a sweep goes on, pictures can be drawn."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.errors import UserError
from recallkit.models.mixers import MIXERS
from tests.examples.conftest import EXAMPLES, timeless

TINY = ("--vocab", 64, "--lengths", 16, "--pairs", 2, "--widths", 16, "--examples", 64, "--test-examples", 32, "--batch", 8, "--steps", 6)


@pytest.fixture(scope="module")
def mqar(load):
    return load("05_train_mqar")


# ----------------------------------------------------------------------------------------------------------------- data


def check_example(ids, places, answers, pairs, vocab):
    """Zoology's Algorithm 1, id by id."""
    keys, values = ids[0 : 2 * pairs : 2], ids[1 : 2 * pairs : 2]
    assert len(set(keys)) == len(set(values)) == pairs
    assert all(1 <= key < vocab // 2 for key in keys)
    assert all(vocab // 2 <= value < vocab for value in values)
    value_of = dict(zip(keys, values, strict=True))
    rest = ids[2 * pairs :]
    assert sorted(id_ for id_ in rest if id_ != 0) == sorted(keys), "each key once more, and filler"
    assert all(id_ == 0 for id_ in rest[1::2]), "gaps are even, so that what follows a query is filler"
    assert {place: value_of[ids[place]] for place in places} == dict(zip(places, answers, strict=True))
    assert sorted(places) == [2 * pairs + i for i, id_ in enumerate(rest) if id_ != 0]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 6), st.integers(0, 9), st.integers(0, 40), st.integers(0, 2**40))
def test_examples_obey_the_definition(load, pairs, spare, more_ids, seed):
    mqar, length, vocab = load("05_train_mqar"), 4 * pairs + spare, 2 * pairs + 4 + more_ids
    made = mqar.mqar_examples(7, length, pairs, vocab, seed)
    assert made.ids.shape == (7, length)
    for row in zip(*(part.tolist() for part in made), strict=True):
        check_example(*row, pairs, vocab)


def test_the_seed_decides_and_test_examples_are_others(mqar):
    training, test = mqar.examples_of(50, 50, 32, 4, 8192, 3)
    again = mqar.mqar_examples(50, 32, 4, 8192, 3)
    assert all(torch.equal(*parts) for parts in zip(training, again, strict=True))
    assert not {tuple(row) for row in training.ids.tolist()} & {tuple(row) for row in test.ids.tolist()}


def test_gaps_are_drawn_by_the_power_law_one_after_another(mqar):
    num, slots = 60_000, 5
    drawn = mqar.weighted_draws(num, 2, slots, torch.Generator().manual_seed(0)).tolist()
    weights = [(slot + 1) ** (0.01 - 1) for slot in range(slots)]
    for first, second in itertools.permutations(range(slots), 2):
        wanted = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        found = sum(pair == [first, second] for pair in drawn) / num
        assert found == pytest.approx(wanted, abs=5 * math.sqrt(wanted / num))


def test_every_arrangement_of_keys_is_as_likely(mqar):
    num = 24_000
    drawn = mqar.distinct(num, 3, 4, torch.Generator().manual_seed(0)).tolist()
    for arrangement in itertools.permutations(range(4), 3):
        assert sum(row == list(arrangement) for row in drawn) / num == pytest.approx(1 / 24, abs=5 * math.sqrt(1 / 24 / num))


@pytest.mark.parametrize(("length", "pairs", "vocab"), [(15, 4, 8192), (64, 0, 64), (64, 8, 18)])
def test_what_does_not_fit_is_refused(mqar, length, pairs, vocab):
    with pytest.raises(UserError, match="pairs in"):
        mqar.mqar_examples(1, length, pairs, vocab, 0)


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize("mixer", sorted({"based", *MIXERS}))
def test_every_mixer_can_be_trained_on_a_length(mqar, shared, mixer):
    model = mqar.made_model(0, 64, 32, mqar.layers_of(mixer, 32, 16, 2), mlp="none")
    assert len(model.blocks) == 2
    assert model.num_parameters(embeddings=False) < 64 * 32 * 30
    shared.answer_loss(model, mqar.mqar_examples(2, 16, 2, 64, 0)).backward()
    assert model.embedding.weight.grad.abs().sum() > 0


SMOOTHING = {"recent", "short", "conv", "seen"}
"""What short convolutions in front of a mixer keep, and numbers of tokens: no mixer's state, as the papers count it."""
COUNTED = "attention sliding_window linear_attention retnet gla rwkv4 rwkv5 mamba mamba2 hyena long_conv s4d".split()


@pytest.mark.parametrize("mixer", COUNTED)
@pytest.mark.parametrize("length", [16, 32])
def test_state_bytes_are_those_of_a_state(mqar, shared, mixer, length):
    job = tiny_job(mqar, mixer=mixer, length=length)
    model = mqar.model_of(job).eval()
    _, state = model.read(torch.randint(0, 64, (1, length)), model.initial_state(1))
    entries = [entry for block in state for name, entry in block["mixer"].items() if name not in SMOOTHING]
    assert all(entry.dtype == torch.float32 for entry in entries)
    assert mqar.work(job, torch.device("cpu"))["state_bytes"] == sum(entry.numel() * entry.element_size() for entry in entries)


def tiny_job(mqar, **changes):
    chosen = dict(mixer="attention", width=32, length=16, pairs=2, learning_rate=1e-2, vocab=64, layers=2)  # noqa: C408
    recipe = dict(examples=16, test_examples=8, steps=1, batch=4, seed=0, stop_above=0.99, measured_every=1)  # noqa: C408
    return mqar.Job(**chosen | recipe | changes)


# ------------------------------------------------------------------------------------------------------------- training


def test_attention_learns_the_task_and_stops(mqar):
    job = tiny_job(mqar, examples=2000, test_examples=200, steps=1500, batch=32, measured_every=25)
    outcome = mqar.work(job, torch.device("cpu"))
    assert outcome["curve"][0][2] > 2.5, "values are 32 ids"
    assert outcome["loss_nats"] < 0.5
    assert outcome["accuracy"] > 0.99
    assert outcome["steps"] < job.steps


def test_accuracy_counts_each_answer_once(mqar, shared, monkeypatch):
    test, asked = mqar.mqar_examples(30, 16, 2, 64, 0), []

    class Half(torch.nn.Module):
        """Knows the value of every query at an even row, whatever batches rows come in."""

    def answer_logits(model, some):
        logits = torch.zeros(*some.answers.shape, 64)
        for row, ids in enumerate(some.ids.tolist()):
            asked.append(ids)
            if test.ids.tolist().index(ids) % 2 == 0:
                for query, answer in enumerate(some.answers[row].tolist()):
                    logits[row, query, answer] = 30.0
        return logits

    monkeypatch.setattr(shared, "answer_logits", answer_logits)
    monkeypatch.setattr(shared, "MEASURED_TOKENS", 16 * 7)
    measured = shared.measure(Half(), test)
    assert asked == test.ids.tolist()
    assert measured.accuracy == 0.5
    assert measured.loss_nats == pytest.approx(0.5 * math.log(64), abs=1e-3)


def test_an_epoch_reads_every_example_once_in_an_order_of_its_own(shared):
    rows = shared.batches(10, 4, seed=1)
    epochs = [torch.cat([next(rows), next(rows)]).tolist() for _ in range(3)]
    assert all(len(set(epoch)) == 8 for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2]
    assert epochs[0] != torch.cat(list(itertools.islice(shared.batches(10, 4, seed=2), 2))).tolist()
    with pytest.raises(UserError, match="--batch"):
        next(shared.batches(3, 4, 0))


def test_the_rate_rises_and_falls_to_zero(shared):
    recipe = shared.Recipe(1.0, 1000, 1, 0, 1.0, 1)
    rates = [recipe.rate(step) for step in range(1000)]
    assert rates[0] == pytest.approx(1 / 50)
    assert max(rates) == pytest.approx(1, abs=0.01)
    assert rates.index(max(rates)) in range(45, 55)
    assert rates[499] == pytest.approx(0.5, abs=0.01)
    assert rates[-1] < 1e-5


def test_a_stopped_sweep_goes_on_and_ends_the_same(mqar, call, interrupted, tmp_path, capsys):
    grid = (*TINY, "--mixers", "attention", "mamba", "--learning-rates", 1e-3, 1e-2)
    call(mqar, *grid, "--out", tmp_path / "whole")
    interrupted(15)  # in the third run of six steps each
    with pytest.raises(SystemExit) as stopped:
        call(mqar, *grid, "--out", tmp_path / "parts")
    assert stopped.value.code == 130
    assert "2 of 4 runs are finished" in capsys.readouterr().err
    assert not (tmp_path / "parts" / "results.json").exists()
    before = {path.name: path.read_bytes() for path in (tmp_path / "parts" / "runs").iterdir()}
    assert len(before) == 2, "no half a file"
    interrupted(12)  # those that are left, and no step more
    call(mqar, *grid, "--out", tmp_path / "parts")
    assert {name: (tmp_path / "parts" / "runs" / name).read_bytes() for name in before} == before
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    written = (tmp_path / "parts" / "results.json").read_bytes()
    interrupted(0)
    call(mqar, *grid, "--out", tmp_path / "parts")
    assert (tmp_path / "parts" / "results.json").read_bytes() == written


def test_other_choices_do_not_meet_old_results(mqar, call, tmp_path):
    call(mqar, *TINY, "--mixers", "attention", "--out", tmp_path)
    first = json.loads((tmp_path / "results.json").read_text())["runs"]
    for option, value in (("--seed", 1), ("--layers", 1), ("--stop-above", 0.5), ("--steps", 5)):
        call(mqar, *TINY, "--mixers", "attention", "--out", tmp_path, option, value)
        (run,) = json.loads((tmp_path / "results.json").read_text())["runs"]
        assert run[option.strip("-").replace("-", "_")] == value
        assert run != first[0]
    assert len(list((tmp_path / "runs").iterdir())) == 5


def test_full_is_the_grid_of_the_paper(mqar, monkeypatch):
    made = []
    monkeypatch.setattr(mqar, "run_example", lambda parser, task: made.extend(task.jobs_of(parser.parse_args(["--full"]))))
    mqar.main()
    assert {(job.length, job.pairs) for job in made} == {(64, 4), (128, 8), (256, 16), (512, 64)}
    assert {job.width for job in made} == {64, 128, 256, 512}
    rates = sorted({job.learning_rate for job in made})
    steps = [math.log10(high / low) for low, high in itertools.pairwise(rates)]
    assert (rates[0], rates[-1], len(rates)) == (1e-4, 1e-2, 4)
    assert steps == pytest.approx([2 / 3] * 3, abs=0.02)
    for job in made:
        assert (job.vocab, job.layers, job.examples, job.test_examples) == (8192, 2, 100_000, 3_000)
        assert job.steps == 64 * (100_000 // job.batch)
    assert len(set(made)) == len(made) == 4 * 4 * 4 * len({job.mixer for job in made})


# -------------------------------------------------------------------------------------------------- results and pictures


def test_the_best_learning_rate_counts(shared):
    runs = [
        {"mixer": "a", "width": 1, "accuracy": 0.5, "loss_nats": 1.0, "rate": 1},
        {"mixer": "a", "width": 1, "accuracy": 0.7, "loss_nats": 2.0, "rate": 2},
        {"mixer": "a", "width": 1, "accuracy": 0.7, "loss_nats": 1.5, "rate": 3},
        {"mixer": "a", "width": 2, "accuracy": 0.1, "loss_nats": 9.0, "rate": 4},
    ]
    assert [run["rate"] for run in shared.best(runs, "mixer", "width")] == [3, 4]


def test_results_are_read_back_and_drawn_elsewhere(mqar, shared, call, tmp_path, capsys):
    call(mqar, *TINY, "--mixers", "attention", "base_conv", "--widths", 8, 16, "--out", tmp_path / "here")
    table = capsys.readouterr().out
    results = tmp_path / "here" / "results.json"
    runs = shared.read_results(results, "mqar")
    kept = timeless(tmp_path / "here")
    assert len(runs) == len(kept) == 4
    for run in runs:
        (whole,) = [one for one in kept.values() if all(one[name] == run[name] for name in ("mixer", "width"))]
        assert run == {name: value for name, value in whole.items() if name != "curve"} | {"seconds": run["seconds"]}
        assert f"{run['parameters']:,}" in table
    call(mqar, "--draw", results, "--out", tmp_path / "there")
    assert capsys.readouterr().out == table
    drawn = ET.fromstring((tmp_path / "there" / "mqar-training.svg").read_bytes())
    texts = ["".join(element.itertext()) for element in drawn.iter() if element.tag.endswith("}text")]
    assert {"attention", "base_conv", "width (length 16, 2 pairs)", "bytes of state (length 16, 2 pairs)"} <= set(texts)
    assert (tmp_path / "there" / "mqar-training.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("text", ["", "[]", '{"runs": []}', '{"task": "copying", "runs": []}', None])
def test_what_are_no_results_is_said_in_one_line(mqar, call, tmp_path, text):
    if text is not None:
        (tmp_path / "results.json").write_text(text)
    with pytest.raises(SystemExit) as refused:
        call(mqar, "--draw", tmp_path / "results.json")
    assert "results" in refused.value.code
    assert "\n" not in refused.value.code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--mixers", "attentoin"), "attention"),
        (("--pairs", 2, 2), "--pairs"),
        (("--lengths", 6), "pairs in 6 ids"),
        (("--batch", 1000), "--batch"),
        (("--mixers", "retnet", "--widths", 6), "width 6"),
        (("--device", "nowhere"), "--device nowhere"),
    ],
)
def test_mistakes_are_one_line(mqar, call, tmp_path, arguments, said):
    with pytest.raises(SystemExit, match=said) as refused:
        call(mqar, *TINY, "--out", tmp_path, *arguments)
    assert "\n" not in refused.value.code


BARE = """
import sys
for name in ("altair", "vl_convert", "polars", "duckdb", "pyarrow", "typer", "rich", "orjson", "zstandard", "numba", "datasets", "lm_eval"):
    sys.modules[name] = None
sys.path.insert(0, {examples!r})
sys.argv = {arguments!r}
import runpy
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_a_machine_with_torch_and_little_else_trains_and_says_where_to_draw(tmp_path):
    arguments = [str(EXAMPLES / "05_train_mqar.py"), *map(str, TINY), "--mixers", "attention", "based", "--out", str(tmp_path)]
    program = BARE.format(examples=str(EXAMPLES), arguments=arguments)
    done = subprocess.run([sys.executable, "-c", program], cwd=EXAMPLES.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "no pictures: altair is not installed here" in done.stderr
    assert len(json.loads((tmp_path / "results.json").read_text())["runs"]) == 2
