"""Counting in shard ranges: the same table for any shard ranges, workers and limits, however often
tasks are killed or given out twice."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from recallkit.counting import bigrams, make_table, sorted_runs
from recallkit.counting import run as counting
from recallkit.counting.bigrams import CountedShardRange
from recallkit.counting.run import CountingOptions
from recallkit.counting.table import read_meta
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.storage.journal import PartsJournal
from recallkit.storage.timings import Timings
from recallkit.text import encoding
from recallkit.text.fields import FieldFinder
from recallkit.text.open_text import OpenText
from recallkit.text.rows import HubShard
from tests.conftest import made_up_texts, write_jsonl


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextOptions:
    folder = tmp_path_factory.mktemp("shards")
    for number, num_documents in enumerate((30, 1, 80, 5, 40, 60)):
        write_jsonl(folder / f"{number}.jsonl", made_up_texts(num_documents, 200, seed=number))
    return TextOptions([str(folder)], "train")


@pytest.fixture(autouse=True)
def one_shard_per_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1)


def facts(out: Path) -> dict[str, object]:
    """All that a table says of itself, its id among it, but for how long it took."""
    return {key: value for key, value in read_meta(out).items() if key != "timings"}


def count(text: TextOptions, out: Path, **options: object) -> dict[str, object]:
    counting.count(text, out, options=CountingOptions(**options))
    assert not list(out.parent.glob(".*")), "something is left behind"
    return facts(out)


@pytest.fixture(scope="module")
def complete(text, tmp_path_factory) -> dict[str, object]:
    """What one process makes of the text in one shard range."""
    out = tmp_path_factory.mktemp("whole") / "counts.duckdb"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(bigrams, "SHARD_RANGE_BYTES", 1 << 30)
        return count(text, out)


def test_several_processes_give_the_same_table(text, complete, tmp_path):
    assert count(text, tmp_path / "counts.duckdb", workers=2) == complete


@pytest.mark.parametrize("limit", [1, 12_345])
def test_a_limit_ends_the_text_at_the_same_token(text, tmp_path, limit, warm_workers, monkeypatch):
    text = replace(text, limit_tokens=limit)
    tables = [count(text, tmp_path / f"{workers}.duckdb", workers=workers) for workers in (1, 3)]
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1 << 30)
    tables.append(count(text, tmp_path / "one.duckdb"))
    assert all(table == tables[0] for table in tables)
    assert tables[0]["num_tokens"] == min(limit, tables[-1]["num_tokens"])


@pytest.mark.parametrize("num_hashes", [0, 300])
def test_a_sample_of_hashes_is_the_same_in_shard_ranges(
    text,
    tmp_path,
    num_hashes,
    warm_workers,
    monkeypatch,
):
    several = count(text, tmp_path / "several.duckdb", workers=3, hashes=num_hashes)
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1 << 30)
    assert count(text, tmp_path / "one.duckdb", hashes=num_hashes) == several
    assert several.get("ngram_hashes", {}).get("num") == (
        {"13": 300, "50": 300} if num_hashes else None
    )


def test_only_is_the_same_in_shard_ranges(text, tmp_path, small_slices, warm_workers, monkeypatch):
    options = CountingOptions(workers=2)
    counting.count(text, tmp_path / "several.duckdb", only=small_slices, options=options)
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1 << 30)
    counting.count(text, tmp_path / "one.duckdb", only=small_slices)
    assert facts(tmp_path / "one.duckdb") == facts(tmp_path / "several.duckdb")


def test_a_killed_process_is_replaced(text, complete, tmp_path, warm_workers, dying_worker, capfd):
    """Its shard range is counted by another one."""
    assert count(text, tmp_path / "counts.duckdb", workers=2) == complete
    assert "a counting process died (SIGKILL)" in capfd.readouterr().err


def test_an_interrupted_count_goes_on_with_other_workers(
    text,
    complete,
    tmp_path,
    warm_workers,
    monkeypatch,
    capsys,
):
    out = tmp_path / "counts.duckdb"
    saved = CountedShardRange.save

    def save(self, path):
        saved(self, path)
        if path.name.endswith("2"):
            raise KeyboardInterrupt

    monkeypatch.setattr(CountedShardRange, "save", save)
    with pytest.raises(KeyboardInterrupt):
        counting.count(text, out)
    monkeypatch.setattr(CountedShardRange, "save", saved)
    assert not out.exists()
    assert count(text, out, workers=2) == complete
    resumed = re.search(r"resuming after ([\d,]+) tokens", capsys.readouterr().err)
    assert resumed
    before, stage = (
        int(resumed[1].replace(",", "")),
        read_meta(out)["timings"]["stages"]["counting"],
    )
    assert 0 < before < complete["num_tokens"]
    assert (stage["tokens"], stage["resumed"]) == (complete["num_tokens"] - before, True)


def test_unfinished_shard_ranges_are_not_lost_to_other_options(text, tmp_path, monkeypatch):
    """The journal of a shard range is work, though no shard range is done."""
    monkeypatch.setattr(bigrams, "SECONDS_PER_CHUNK", 0.0)
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 1000)
    monkeypatch.setattr(CountedShardRange, "save", _interrupt)
    out = tmp_path / "counts.duckdb"
    with pytest.raises(KeyboardInterrupt):
        counting.count(text, out)
    monkeypatch.undo()
    with pytest.raises(UserError, match="an unfinished run with other options"):
        counting.count(replace(text, boundary="document"), out)
    counting.count(replace(text, boundary="document"), out, force=True)
    assert not list(tmp_path.glob(".*"))


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_a_part_that_lost_a_file_is_counted_again(text, complete, tmp_path, monkeypatch):
    out = tmp_path / "counts.duckdb"
    monkeypatch.setattr(bigrams, "join_shard_ranges", _interrupt)
    with pytest.raises(KeyboardInterrupt):
        counting.count(text, out)
    monkeypatch.undo()
    next((tmp_path / ".counts.duckdb.partial").glob("tokens-*.counts")).unlink()
    monkeypatch.setattr(bigrams, "SHARD_RANGE_BYTES", 1)
    assert count(text, out) == complete


def test_runs_merged_by_ranges_of_keys_are_sorted_and_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(sorted_runs, "ROWS_PER_RANGE", 50)
    rng, expected, runs = np.random.default_rng(0), Counter(), []
    for _ in range(5):
        keys = np.unique(rng.integers(0, 2000, 300)).astype(np.uint64)
        counts = rng.integers(1, 9, len(keys)).astype(np.uint64)
        expected.update(dict(zip(keys.tolist(), counts.tolist(), strict=True)))
        runs.append(sorted_runs.kind_of("bigrams").make(keys, counts))
    files = sorted_runs.RunFiles(tmp_path, "bigrams")
    keys, counts = files.load(files.merge(runs, num_threads=3))
    assert keys.tolist() == sorted(expected)
    assert counts.tolist() == [expected[key] for key in sorted(expected)]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_shard_that_changes_is_noticed(text, tmp_path, workers, warm_workers, monkeypatch):
    folder = tmp_path / "shards"
    folder.mkdir()
    shards = [
        write_jsonl(folder / f"{number}.jsonl", made_up_texts(20, 100, seed=number))
        for number in range(3)
    ]
    opened = OpenText(TextOptions([str(folder)], "train"))
    identity = opened.identity()
    before = shards[1].read_bytes()
    monkeypatch.setattr(bigrams, "SECONDS_PER_CHUNK", 0.0)
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 1000)
    write_jsonl(shards[1], made_up_texts(20, 100, seed=9))
    with PartsJournal(tmp_path / "counts.duckdb", identity) as journal:
        with pytest.raises(UserError, match=r"1\.jsonl: changed while it was read") as caught:
            counting.count_text(opened, journal, CountingOptions(workers=workers), Timings())
        assert "--force" in caught.value.line()
        assert not CountedShardRange.load(journal.parts.path(1))
        assert not journal.parts.begun_state(1), (
            "what was read of another file would be gone on with"
        )
        shards[1].write_bytes(before)
        counted = counting.count_text(opened, journal, CountingOptions(workers=workers), Timings())
    counting.count(TextOptions([str(folder)], "train"), tmp_path / "undisturbed.duckdb")
    assert counted.num_tokens == read_meta(tmp_path / "undisturbed.duckdb")["num_tokens"]
    shards[2].unlink()
    with (
        PartsJournal(tmp_path / "other.duckdb", identity) as journal,
        pytest.raises(UserError, match=r"[12]\.jsonl"),
    ):
        counting.count_text(opened, journal, CountingOptions(workers=workers), Timings())


def test_a_bad_record_is_one_line_from_a_process_too(tmp_path, warm_workers, capsys):
    for number in range(3):
        write_jsonl(tmp_path / f"{number}.jsonl", made_up_texts(5, 50, seed=number))
    (tmp_path / "1.jsonl").write_text('{"text": "whole"}\n{"text": 3}\n')
    text = TextOptions([str(tmp_path)], "train")
    with pytest.raises(UserError, match=r"1\.jsonl, line 2"):
        counting.count(text, tmp_path / "out" / "counts.duckdb", options=CountingOptions(workers=2))
    skipping = replace(text, skip_bad=True)
    assert (
        counting.count(skipping, tmp_path / "out" / "a.duckdb", options=CountingOptions(workers=2))[
            "num_documents"
        ]
        == 11
    )
    assert (
        f"skipped 1 bad record, the first: {tmp_path / '1.jsonl'}, line 2: "
        in capsys.readouterr().err
    )


def test_files_of_a_data_set_are_counted_apart(tmp_path):
    """As the hub serves them: a split of three files, read by `datasets`."""
    repo = tmp_path / "repo"
    repo.mkdir()
    for number in range(3):
        write_jsonl(repo / f"train-{number}-of-3.jsonl", made_up_texts(20, 60, seed=number))
    local = counting.count(TextOptions([str(repo)], "train"), tmp_path / "local.duckdb")
    opened = OpenText(
        TextOptions(["demo"], "train"),
        shards=[HubShard("pile:train", "pile", FieldFinder(), str(repo), "train")],
    )
    with PartsJournal(tmp_path / "hub.duckdb", {}) as journal:
        counted = counting.count_text(opened, journal, CountingOptions(), Timings())
        assert len(journal.parts.done()) == 3
        streamed = make_table.write_counts(
            tmp_path / "hub.duckdb",
            counted,
            {name: local[name] for name in ("tokenizer", "boundary", "only")},
        )
    assert streamed["id"] == local["id"]


@pytest.mark.parametrize("source", ["", "*.json"])
def test_lists_beside_counts_are_not_text(tmp_path: Path, source: str) -> None:
    """Of counts in the folder of their text, which has files of the same suffix as lists."""
    (tmp_path / "a.json").write_text(json.dumps([{"text": "one two one two"}]))
    text, out = TextOptions([str(tmp_path / source)], "train"), tmp_path / "counts.duckdb"
    first = count(text, out)
    assert (tmp_path / "counts.json").exists()
    assert count(text, out) == first
    assert count(text, tmp_path / "again.duckdb")["id"] == first["id"]
