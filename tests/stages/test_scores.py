"""Score files: row-aligned with the slices, the same bytes however the work was interrupted, refused when they do not fit."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path

import numpy as np
import polars as pl
import pyarrow.parquet as pq
import pytest

from recallkit import artifacts, pipeline
from recallkit.errors import UserError
from recallkit.journal import Journal
from recallkit.models.api import TokenScores
from recallkit.stages import scores
from tests.conftest import FAMILIES
from tests.models.test_hf import direct


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def sequences_of(slices: Path) -> tuple[np.ndarray, np.ndarray]:
    rows = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    return np.concatenate(rows), np.concatenate([[0], np.cumsum([len(r) for r in rows])])


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("batch_tokens", [64, 1000, None])
def test_a_score_file_holds_the_models_own_nlls(small_slices, tiny_model, family, batch_tokens):
    path = str(tiny_model(family))
    options = pipeline.ScoringOptions(device="cpu", batch_tokens=batch_tokens, force=True)
    pipeline.score(path, small_slices, options)
    table = pl.read_parquet(pipeline.score_path(small_slices, path))
    nll, argmax, _ = direct(path, *sequences_of(small_slices))
    np.testing.assert_allclose(table["nll"], nll, rtol=0, atol=1e-5)
    assert (table["argmax"].to_numpy() == argmax).mean() > 0.99


def test_rows_and_row_groups_are_those_of_the_slices(small_slices):
    pipeline.score("control:bigram", small_slices)
    path = pipeline.score_path(small_slices, "control:bigram")
    keys = ["sequence", "position"]
    assert pl.read_parquet(path, columns=keys).equals(pl.read_parquet(small_slices / "tokens.parquet", columns=keys))
    groups = [
        [m.row_group(g).num_rows for g in range(m.num_row_groups)]
        for m in (pq.read_metadata(path), pq.read_metadata(small_slices / "tokens.parquet"))
    ]
    assert groups[0] == groups[1]


class Probe:
    """A model whose scores name the sequence's ids, for any batch, and that can fail when told."""

    name, vocab_size, max_length = "probe", 4096, None

    def __init__(self, *, stop_after: int | None = None, most_ids: int | None = None, bad: int | None = None) -> None:
        self.calls, self.stop_after, self.most_ids, self.bad = 0, stop_after, most_ids, bad

    def batch_tokens(self, seq_len: int) -> int:
        return 4 * seq_len

    def score(self, ids: np.ndarray, offsets: np.ndarray) -> TokenScores:
        if self.most_ids is not None and len(ids) > self.most_ids:
            raise MemoryError
        self.calls += 1
        if self.stop_after is not None and self.calls > self.stop_after:
            raise KeyboardInterrupt
        keep = np.ones(len(ids), bool)
        keep[offsets[:-1]] = False
        nll = ids[keep].astype(np.float32)
        if self.bad is not None:
            nll[ids[keep] == self.bad] = np.nan
        return TokenScores(nll, ids[keep].astype(np.int32), np.zeros(keep.sum(), np.int32))


def parts_of(num_sequences: int, length: int = 9, size: int = 4):
    """Parts of `size` sequences of ids that count up, a little ragged."""
    for first in range(0, num_sequences, size):
        lengths = [length - (n % 3) for n in range(first, min(first + size, num_sequences))]
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        yield first, (np.arange(offsets[-1]) + 10 * first).astype(np.uint32) % 4096, offsets


def score_all(folder: Path, model: Probe, batch_tokens: int = 20) -> Path:
    path = folder / "scores.parquet"
    with Journal(path, {"k": 1}) as journal:
        scores.score_sequences(model, parts_of(30), journal, batch_tokens=batch_tokens)
        scores.write_scores(journal, path, {"kind": "scores"})
        journal.finish()
    return path


def test_every_score_lands_on_its_token(tmp_path):
    table = pl.read_parquet(score_all(tmp_path, Probe()))
    expected = [i for _, ids, offsets in parts_of(30) for a, b in itertools.pairwise(offsets) for i in ids[a + 1 : b]]
    assert table["nll"].to_list() == expected
    assert table["position"].to_list() == [p for n in range(30) for p in range(1, 9 - (n % 3))]


def test_interrupted_scoring_goes_on_to_the_same_bytes(tmp_path):
    whole = digest(score_all(tmp_path / "whole", Probe()))
    calls = []
    for stop in (1, 5, 2, 7, None):
        model = Probe(stop_after=stop)
        if stop is None:
            assert digest(score_all(tmp_path / "cut", model)) == whole
        else:
            with pytest.raises(KeyboardInterrupt):
                score_all(tmp_path / "cut", model)
        calls.append(model.calls)
    full = Probe()
    score_all(tmp_path / "count", full)
    assert calls[-1] < full.calls, "nothing was kept of the interrupted runs"


def test_out_of_memory_halves_the_batch_and_says_so(tmp_path):
    notes: list[str] = []
    path = tmp_path / "scores.parquet"
    with Journal(path, {}) as journal:
        scores.score_sequences(Probe(most_ids=12), parts_of(8), journal, batch_tokens=64, notify=notes.append)
        assert journal.state["batch_tokens"] == 8
    assert [note.split()[-2] for note in notes] == ["32", "16", "8"]
    with Journal(tmp_path / "other", {}) as journal, pytest.raises(UserError, match="out of memory"):
        scores.score_sequences(Probe(most_ids=3), parts_of(8), journal, batch_tokens=64)


def test_nan_is_named_by_sequence_and_position(tmp_path):
    _, ids, offsets = list(parts_of(30))[1]
    bad = int(ids[offsets[2] + 3])
    with Journal(tmp_path / "s", {}) as journal, pytest.raises(UserError, match="sequence 6, position 3 is nan"):
        scores.score_sequences(Probe(bad=bad), parts_of(30), journal, batch_tokens=20)


def test_a_sequence_beyond_the_context_is_refused_with_the_number():
    model = Probe()
    model.max_length = 7
    scores.check_length(model, 7)
    with pytest.raises(UserError, match=r"holds 7 ids.*have 8.*--seq-len 7"):
        scores.check_length(model, 8)


def test_scores_are_made_once(small_slices, capsys):
    first = pipeline.score("control:unigram", small_slices)
    path = pipeline.score_path(small_slices, "control:unigram")
    before = path.stat().st_mtime_ns
    assert pipeline.score("control:unigram", small_slices) == first
    assert path.stat().st_mtime_ns == before


def test_changed_weights_are_noticed(small_slices, tiny_model, tmp_path):
    import shutil

    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    pipeline.score(str(model), small_slices, pipeline.ScoringOptions(device="cpu"))
    config = model / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(UserError, match="model_digest"):
        pipeline.score(str(model), small_slices, pipeline.ScoringOptions(device="cpu"))


def test_a_model_with_another_tokenizer_is_refused(small_slices, tiny_model, tmp_path):
    import shutil

    from tests.stages.test_tokens import word_tokenizer

    model = tmp_path / "model"
    shutil.copytree(tiny_model("llama"), model)
    word_tokenizer(["?", "<|endoftext|>", "model", "the"]).save(str(model / "tokenizer.json"))
    with pytest.raises(UserError, match="other ids"):
        pipeline.score(str(model), small_slices, pipeline.ScoringOptions(device="cpu"))


def test_names_never_leave_the_folder(small_slices):
    for name in ("../../x", "/etc/passwd", "..", "a\x00b", "control:recall", "org/model"):
        assert pipeline.score_path(small_slices, name).parent == small_slices / "scores"
    assert pipeline.score_path(small_slices, "a/b") != pipeline.score_path(small_slices, "a-b")
    assert artifacts.file_slug("plain-name_1") == "plain-name_1"
