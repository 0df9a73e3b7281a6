"""A tracker's batches and NLLs: any division among processes gives the same rows, FSDP's on two processes among them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import recallkit
from recallkit.errors import UserError
from tests.conftest import ROOT

NUMBER = 40
"""Steps of the training that is sharded."""


def scored(slices, tmp_path, model="control:recall"):
    """NLLs of a model of the slices, by sequence (sequences, seq_len), and the row that `track` has of it."""
    counts = slices.parent / "counts.duckdb"
    tables = recallkit.track(
        {"other": "control:bigram"}, {"m-7": model}, slices=slices, counts=counts, out=tmp_path / "tables", slice=["repeated", "copy:k3"]
    )
    scores = pl.read_parquet(slices / "scores" / "m-7.parquet")
    lengths = scores.group_by("sequence", maintain_order=True).len()["len"].to_numpy()
    rows = np.zeros((len(lengths), 64), np.float32)
    rows[np.arange(64) < lengths[:, None]] = scores["nll"].to_numpy()
    return rows, tables


@pytest.mark.parametrize(("world", "size", "array"), [(1, 8, np.asarray), (3, 5, np.float16), (2, 100, None)])
def test_any_division_among_processes_gives_the_row_of_track(world, size, array, few_slices, tmp_path):
    import torch

    rows, tables = scored(few_slices, tmp_path)
    np.save(tmp_path / "reference.npy", pl.read_parquet(few_slices / "scores" / "other.parquet")["nll"].to_numpy())
    tracker = recallkit.Tracker(
        slices=few_slices, reference={"same": tmp_path / "reference.npy"}, out=tmp_path / "run", slice=["repeated", "copy:k3"]
    )
    numbers = []
    for rank in range(world):
        batches = list(tracker.batches(rank, world, size))
        numbers.append(len(batches))
        for batch in batches:
            nlls = rows[batch.first : batch.first + len(batch.ids)]
            tracker.add(batch, torch.tensor(nlls, dtype=torch.bfloat16).float() * 0 + torch.tensor(nlls) if array is None else array(nlls))
    assert len(set(numbers)) == 1, "processes that wait for each other read equally often"
    metrics = tracker.log(7)
    mine, row = tracker.table.to_dicts()[-1], tables.track.to_dicts()[-1]
    tolerance = 1e-3 if array is np.float16 else 1e-9
    numbers = [name for name in mine if name not in ("model", "reference") and row[name] is not None]
    assert [name for name in mine if mine[name] is None] == [name for name in row if row[name] is None]
    assert {name: mine[name] for name in numbers} == pytest.approx({name: row[name] for name in numbers}, rel=tolerance, abs=tolerance)
    assert metrics["recall/gain"] == 100 * mine["gain"]
    assert metrics["recall/ar_gap"] == mine["ar_gap"]
    by_slice = {of["slice"]: of for of in tables.by_slice.filter(step=7).to_dicts()}
    for name in ("repeated", "copy:k3"):
        assert metrics[f"recall/{name}/nll"] == pytest.approx(by_slice[name]["nll"], rel=tolerance)
        assert metrics[f"recall/{name}/gain"] == pytest.approx(100 * by_slice[name]["gain"], rel=tolerance, abs=tolerance)


def test_a_batch_begins_with_what_is_read_before_every_text(few_slices, tmp_path):
    rows, tables = scored(few_slices, tmp_path)
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path / "run", bos="<|endoftext|>")
    for batch in tracker.batches():
        assert (batch.ids.dtype, batch.ids.shape[1], set(batch.ids[:, 0])) == (np.int64, 66, {0})
        nlls = rows[batch.first : batch.first + len(batch.ids)]
        tracker.add(batch, np.pad(nlls, ((0, 0), (1, 0)), constant_values=99))
    tracker.log(7)
    assert tracker.table["nll"][-1] == pytest.approx(tables.track["nll"][-1], rel=1e-9)


def test_nlls_that_are_missing_undefined_negative_or_of_another_shape_are_refused(few_slices, tmp_path):
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path / "run")
    first, *others = tracker.batches(size=4)
    with pytest.raises(UserError, match=r"NLLs of the shape \(4, 65\) for ids of the shape \(4, 65\); give \(4, 64\)"):
        tracker.add(first, np.zeros((4, 65)))
    tracker.add(first, np.zeros((4, 64)))
    with pytest.raises(UserError, match=r"of [\d,]+ NLLs are missing; add those of all batches here"):
        tracker.log(1)
    for batch in (first, *others):
        tracker.add(batch, np.full(batch.ids[:, 1:].shape, np.nan if batch is first else 1.0))
    with pytest.raises(UserError, match="its NLL at sequence 0, position 1 is not finite"):
        tracker.log(1)
    for batch in (first, *others):
        tracker.add(batch, np.full(batch.ids[:, 1:].shape, -1.0 if batch is first else 1.0))
    with pytest.raises(UserError, match="log: log-probabilities, not NLLs; multiply by -1"):
        tracker.log(1)
    with pytest.raises(UserError, match="rank 2 of 2"):
        next(tracker.batches(2, 2))
    assert not (tmp_path / "run" / "track.parquet").exists()


def test_nlls_that_stand_at_other_tokens_are_said_and_the_training_goes_on(home, tmp_path, capsys):
    tracker = recallkit.Tracker(sample_tokens=3000, out=tmp_path)
    recallkit.score("control:bigram", slices=tmp_path / "slices")
    rows = np.zeros((12, 256), np.float32)
    rows.flat[:3000] = pl.read_parquet(next((tmp_path / "slices/scores").glob("*.parquet")))["nll"].to_numpy()
    for step, shift in enumerate((0, 1)):
        for batch in tracker.batches():
            tracker.add(batch, np.roll(rows[batch.first : batch.first + len(batch.ids)], shift, axis=1))
        tracker.log(step)
        assert ("its NLLs stand one token too late" in capsys.readouterr().err) == bool(shift)
    assert tracker.table["step"].to_list() == [0, 1]


def test_the_text_is_read_in_the_tokens_of_the_model(home, tmp_path):
    """With the built-in tokenizer from a file, the text and its labels are those of the built-in default."""
    tokenizer = ROOT / "recallkit/data/tokenizer.json"
    mine = recallkit.Tracker(sample_tokens=2000, tokenizer=tokenizer, out=tmp_path / "mine")
    usual = recallkit.Tracker(sample_tokens=2000, out=tmp_path / "usual")
    for one, other in zip(mine.batches(), usual.batches(), strict=True):
        assert np.array_equal(one.ids, other.ids)
    labels = [pl.read_parquet(tmp_path / name / "slices/tokens.parquet")["ar_hit"].sum() for name in ("mine", "usual")]
    assert labels[0] == pytest.approx(labels[1], rel=0.1)
    assert (tmp_path / "mine/counts.duckdb").is_file()
    with pytest.raises(UserError, match="slices are read as they are; leave it out, or slice with it"):
        recallkit.Tracker(slices=tmp_path / "mine/slices", tokenizer=tokenizer, out=tmp_path / "other")


def test_metrics_go_to_every_run_that_is_open(few_slices, tmp_path, monkeypatch, capsys):
    rows, _ = scored(few_slices, tmp_path)
    logged = {}
    wandb = SimpleNamespace(
        run=SimpleNamespace(
            define_metric=lambda name, step_metric: logged.setdefault("axis", (name, step_metric)),
            log=lambda metrics, commit: logged.update(wandb=(metrics, commit)),
        )
    )
    trackio = SimpleNamespace(
        current_run=SimpleNamespace(get=lambda: SimpleNamespace(log=lambda metrics, step: logged.update(trackio=(metrics, step))))
    )
    mlflow = SimpleNamespace(active_run=lambda: object(), log_metrics=lambda metrics, step: logged.update(mlflow=(metrics, step)))
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "trackio.context_vars", trackio)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    board = SimpleNamespace(add_scalar=lambda name, value, step: logged.setdefault("board", {}).update({name: (value, step)}))
    tracker = recallkit.Tracker(slices=few_slices, out=tmp_path / "run", writer=board)

    def log(step):
        for batch in tracker.batches():
            tracker.add(batch, rows[batch.first : batch.first + len(batch.ids)])
        return tracker.log(step)

    metrics = log(7)
    assert logged == {
        "axis": ("recall/*", "recall/step"),
        "wandb": ({**metrics, "recall/step": 7}, False),
        "trackio": (metrics, 7),
        "mlflow": (metrics, 7),
        "board": {name: (value, 7) for name, value in metrics.items()},
    }
    mlflow.active_run = lambda: None
    trackio.current_run.get = lambda: None
    wandb.run.log = lambda metrics, commit: exec("raise OSError('no network')")
    board.add_scalar = lambda name, value, step: exec("raise OSError('disk full')")
    log(8)
    assert logged["mlflow"][1] == logged["trackio"][1] == 7
    said = capsys.readouterr().err
    assert "step 8 is not logged to wandb (no network); it is in the table" in said
    assert "step 8 is not logged to tensorboard (disk full); it is in the table" in said
    assert tracker.table["step"].to_list() == [7, 8]


PROGRAM = '''
"""Trains a small model on lists, sharded by FSDP where there are several processes; prints what rank 0 logs."""
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
    """Predicts from the id and the one before it: what follows a bigram is learnt, and little else."""

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
                nlls = functional.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
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
    import json
    import os

    program = tmp_path / "program.py"
    program.write_text(PROGRAM.replace("STEPS", str(NUMBER)))
    words = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"] if world > 1 else [sys.executable]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*words, program, few_slices, tmp_path / f"of-{world}", str(world)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_a_model_that_fsdp_shards_over_two_processes_has_the_curve_of_one(few_slices, tmp_path):
    alone, sharded = (trained(world, few_slices, tmp_path) for world in (1, 2))
    assert len(alone) == NUMBER // 20 + 1
    for one, two in zip(alone, sharded, strict=True):
        assert two == pytest.approx(one, rel=1e-4, abs=1e-4)
    assert alone[0]["recall/ar_nll"] != pytest.approx(alone[-1]["recall/ar_nll"], abs=0.01), "it has learnt something"
    tables = [pl.read_parquet(tmp_path / f"of-{world}/track.parquet")["step"].to_list() for world in (1, 2)]
    assert tables == [list(range(0, NUMBER + 1, 20))] * 2
