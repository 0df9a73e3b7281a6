"""A tracker's batches and NLLs: any division among processes gives the same rows, FSDP's on two
processes among them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest
import torch

import recallkit
from recallkit.errors import UserError
from tests.conftest import ROOT

NUMBER = 40
"""Steps of the training that is sharded."""

SLICES = ["repeated", "copy:k3"]


@pytest.fixture
def scored(few_slices, tmp_path):
    """NLLs of a model of the slices, by sequence (sequences, seq_len), and the tables that `track`
    has of it."""
    counts, out = few_slices.parent / "counts.duckdb", tmp_path / "tables"
    models = {"other": "control:bigram"}, {"m-7": "control:recall"}
    tables = recallkit.track(*models, slices=few_slices, counts=counts, out=out, slice=SLICES)
    scores = pl.read_parquet(few_slices / "scores" / "m-7.parquet")
    lengths = scores.group_by("sequence", maintain_order=True).len()["len"].to_numpy()
    rows = np.zeros((len(lengths), 64), np.float32)
    rows[np.arange(64) < lengths[:, None]] = scores["nll"].to_numpy()
    return rows, tables


def read(tracker, nlls, as_array=np.asarray, **division):
    """Adds NLLs (sequences, seq_len) batch by batch; returns the number of batches."""
    batches = list(tracker.batches(**division))
    for batch in batches:
        tracker.add(batch, as_array(nlls[batch.first : batch.first + len(batch.ids)]))
    return len(batches)


@pytest.mark.parametrize(
    ("world", "size", "as_array", "tolerance"),
    [(1, 8, np.asarray, 1e-9), (3, 5, np.float16, 1e-3), (2, 100, torch.tensor, 1e-9)],
)
def test_any_division_gives_the_row_of_track(
    world,
    size,
    as_array,
    tolerance,
    scored,
    few_slices,
    tmp_path,
):
    rows, tables = scored
    recorded = pl.read_parquet(few_slices / "scores" / "other.parquet")["nll"].to_numpy()
    np.save(tmp_path / "reference.npy", recorded)
    reference, out = {"same": tmp_path / "reference.npy"}, tmp_path / "run"
    tracker = recallkit.Tracker(slices=few_slices, reference=reference, out=out, slice=SLICES)
    numbers = set()
    for rank in range(world):
        numbers.add(read(tracker, rows, as_array, rank=rank, world=world, size=size))
    assert len(numbers) == 1, "processes that wait for each other read equally often"
    metrics = tracker.log(7)
    frames = [frame.drop("model", "reference") for frame in (tracker.table, tables.track)]
    mine, row = (frame.fill_null(-1).row(-1, named=True) for frame in frames)
    assert mine == pytest.approx(row, rel=tolerance, abs=tolerance)
    expected = {"recall/gain": 100 * row["gain"], "recall/ar_gap": row["ar_gap"]}
    for slice_, nll, gain in tables.by_slice.filter(step=7).select("slice", "nll", "gain").rows():
        expected |= {f"recall/{slice_}/nll": nll, f"recall/{slice_}/gain": 100 * gain}
    logged = {name: metrics[name] for name in expected}
    assert logged == pytest.approx(expected, rel=tolerance, abs=100 * tolerance)


def test_a_batch_begins_with_what_is_read_before_every_text(scored, few_slices, tmp_path):
    rows, tables = scored
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path / "run", bos="<|endoftext|>")
    for batch in tracker.batches():
        assert (batch.ids.dtype, batch.ids.shape[1], set(batch.ids[:, 0])) == (np.int64, 66, {0})
    read(tracker, np.pad(rows, ((0, 0), (1, 0)), constant_values=99))
    tracker.log(7)
    assert tracker.table["nll"][-1] == pytest.approx(tables.track["nll"][-1], rel=1e-9)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (None, r"of [\d,]+ NLLs are missing; add those of all batches here"),
        (np.nan, "its NLL at sequence 0, position 1 is not finite"),
        (-1.0, "log: log-probabilities, not NLLs; multiply by -1"),
    ],
)
def test_nlls_that_are_none_are_refused(value, problem, few_slices, tmp_path):
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path)
    for number, batch in enumerate(tracker.batches(size=4)):
        nlls = np.ones(batch.ids[:, 1:].shape)
        if number or value is not None:
            tracker.add(batch, nlls if number else value * nlls)
    with pytest.raises(UserError, match=problem):
        tracker.log(1)
    assert not (tmp_path / "track.parquet").exists()


def test_batches_of_another_division_or_shape_are_refused(few_slices, tmp_path):
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path)
    with pytest.raises(UserError, match="rank 2 of 2"):
        next(tracker.batches(2, 2))
    first = next(tracker.batches(size=4))
    problem = r"NLLs of the shape \(4, 65\) for ids of the shape \(4, 65\); give \(4, 64\)"
    with pytest.raises(UserError, match=problem):
        tracker.add(first, np.zeros((4, 65)))


def test_nlls_of_other_tokens_are_said_and_the_training_goes_on(home, tmp_path, capsys):
    tracker = recallkit.Tracker(sample_tokens=3000, out=tmp_path)
    recallkit.score("control:bigram", slices=tmp_path / "slices")
    [scores] = (tmp_path / "slices/scores").glob("*.parquet")
    rows = np.zeros((12, 256), np.float32)
    rows.flat[:3000] = pl.read_parquet(scores)["nll"].to_numpy()
    for shift in (0, 1):
        read(tracker, np.roll(rows, shift, axis=1))
        tracker.log(shift)
        is_said = "its NLLs stand one token too late" in capsys.readouterr().err
        assert is_said == bool(shift)
    assert tracker.table["step"].to_list() == [0, 1]


def test_the_text_is_read_in_the_tokens_of_the_model(home, tmp_path):
    """With the built-in tokenizer from a file, the text and its labels are those of the built-in
    default."""
    tokenizer = ROOT / "recallkit/data/tokenizer.json"
    mine = recallkit.Tracker(sample_tokens=2000, tokenizer=tokenizer, out=tmp_path / "mine")
    usual = recallkit.Tracker(sample_tokens=2000, out=tmp_path / "usual")
    for one, other in zip(mine.batches(), usual.batches(), strict=True):
        assert np.array_equal(one.ids, other.ids)
    files = [tmp_path / name / "slices/tokens.parquet" for name in ("mine", "usual")]
    hits = [pl.read_parquet(file)["ar_hit"].sum() for file in files]
    assert hits[0] == pytest.approx(hits[1], rel=0.1)
    assert (tmp_path / "mine/counts.duckdb").is_file()


class Log:
    """A run of a tracker that is open, or its package: notes what it gets."""

    def __init__(self):
        self.calls = []
        self.is_broken = False

    def __call__(self, *arguments, **options):
        if self.is_broken:
            raise OSError("no network")
        self.calls.append((*arguments, *options.values()))


def test_metrics_go_to_every_run_that_is_open(scored, few_slices, tmp_path, monkeypatch, capsys):
    names = ("wandb", "trackio", "mlflow", "writer", "axis")
    logs = {name: Log() for name in names}
    run = SimpleNamespace(log=logs["wandb"], define_metric=logs["axis"])
    open_runs = {"trackio": SimpleNamespace(log=logs["trackio"]), "mlflow": object()}
    current = SimpleNamespace(get=lambda: open_runs["trackio"])
    mlflow = SimpleNamespace(active_run=lambda: open_runs["mlflow"], log_metrics=logs["mlflow"])
    modules = {
        "wandb": SimpleNamespace(run=run),
        "trackio.context_vars": SimpleNamespace(current_run=current),
        "mlflow": mlflow,
    }
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    writer = SimpleNamespace(add_scalar=logs["writer"])
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path / "run", writer=writer)
    read(tracker, scored[0])
    metrics = tracker.log(7)
    assert logs["axis"].calls == [("recall/*", "recall/step")]
    assert logs["wandb"].calls == [({**metrics, "recall/step": 7}, False)]
    assert logs["trackio"].calls == logs["mlflow"].calls == [(metrics, 7)]
    assert logs["writer"].calls == [(name, value, 7) for name, value in metrics.items()]
    open_runs |= {"trackio": None, "mlflow": None}
    logs["wandb"].is_broken = logs["writer"].is_broken = True
    read(tracker, scored[0])
    tracker.log(8)
    assert len(logs["trackio"].calls) == len(logs["mlflow"].calls) == 1
    notes = capsys.readouterr().err
    for name in ("wandb", "tensorboard"):
        assert f"step 8 is not logged to {name} (no network); it is in the table" in notes
    assert tracker.table["step"].to_list() == [7, 8]


PROGRAM = '''
"""Trains a small model on lists, sharded by FSDP where there are several processes; prints what
rank 0 logs."""
import json, sys
import torch
from torch import distributed, nn
from torch.nn import functional
import recallkit

slices, out, world = sys.argv[1], sys.argv[2], int(sys.argv[3])
rank = 0
if world > 1:
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()


class Model(nn.Module):
    """Predicts from the id and the one before it: what follows a bigram is learnt, little else."""

    def __init__(self):
        super().__init__()
        self.embedding, self.before = nn.Embedding(4096, 32), nn.Embedding(4096, 32)
        self.layer, self.head = nn.Linear(32, 32), nn.Linear(32, 4096)

    def forward(self, ids):
        states = self.embedding(ids) + functional.pad(self.before(ids), (0, 0, 1, 0))[:, :-1]
        return self.head(torch.tanh(self.layer(states)))


torch.manual_seed(0)
torch.set_num_threads(1)
model = Model()
if world > 1:
    from torch.distributed.fsdp import fully_shard

    fully_shard(model.layer)
    fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
tracker = recallkit.Tracker(slices=slices, out=out)
generator = torch.Generator().manual_seed(1)
for step in range(STEPS + 1):
    if step % 20 == 0:
        with torch.no_grad():
            for batch in tracker.batches(rank, world, 3):
                ids = torch.tensor(batch.ids)
                logits = model(ids[:, :-1])
                logits = logits.transpose(1, 2)
                nlls = functional.cross_entropy(logits, ids[:, 1:], reduction="none")
                tracker.add(batch, nlls)
        metrics = tracker.log(step)
        if rank == 0:
            print(json.dumps(metrics), flush=True)
        assert bool(metrics) == (rank == 0)
    ids = torch.randint(0, 4096, (8, 33), generator=generator)[rank::world]
    loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
if world > 1:
    distributed.destroy_process_group()
'''


def trained(world, few_slices, tmp_path):
    """What rank 0 logs, step by step, of a training on so many processes."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("STEPS", str(NUMBER)))
    launcher = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    arguments = [program, few_slices, tmp_path / f"of-{world}", str(world)]
    training = subprocess.run(
        [sys.executable, *(launcher if world > 1 else []), *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert training.returncode == 0, training.stderr[-3000:]
    return [json.loads(line) for line in training.stdout.splitlines() if line.startswith("{")]


def test_a_model_that_fsdp_shards_over_two_processes_has_the_curve_of_one(few_slices, tmp_path):
    alone, sharded = (trained(world, few_slices, tmp_path) for world in (1, 2))
    steps = list(range(0, NUMBER + 1, 20))
    assert len(alone) == len(steps)
    for one, two in zip(alone, sharded, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-4)
    first, last = alone[0]["recall/ar_nll"], alone[-1]["recall/ar_nll"]
    assert first != pytest.approx(last, abs=0.01), "it has learnt something"
    for world in (1, 2):
        table = pl.read_parquet(tmp_path / f"of-{world}/track.parquet")
        assert table["step"].to_list() == steps
