"""Packing: every token predicted once, adjacent sequences share one id, any cut and any restart
give the same sequences."""

from __future__ import annotations

from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit import config
from recallkit.text import sequences
from recallkit.text.records import EncodedDocuments, Position
from recallkit.text.sequences import PackingState, pack_sequences

END = 99


def batches(documents: list[list[int]], sizes: list[int], start: int = 0):
    """Documents from number `start` on, in batches of the given sizes (repeated)."""
    at, turn = start, 0
    while at < len(documents):
        chosen = documents[at : at + sizes[turn % len(sizes)]]
        yield EncodedDocuments(
            ids=np.array([i for d in chosen for i in d], np.uint16),
            offsets=np.concatenate([[0], np.cumsum([len(d) for d in chosen])]).astype(np.int64),
            sources=[f"s{n % 3}" for n in range(at, at + len(chosen))],
            positions=[Position(0, n) for n in range(at, at + len(chosen))],
        )
        at, turn = at + len(chosen), turn + 1


def expected_sequences(
    documents: list[list[int]],
    seq_len: int,
    boundary: str,
    limit: int | None,
) -> list[list[tuple[int, int]]]:
    """(id, document) of every sequence, by the definition."""
    streams: list[list[tuple[int, int]]] = [[]]
    for number, document in enumerate(documents):
        if boundary == "pack":
            streams[0] += [(token, number) for token in [*document, END]]
        else:
            streams.append([(token, number) for token in [END, *document]])
    cut, left = [], limit if limit is not None else 10**9
    for stream in streams:
        for start in range(0, len(stream) - 1, seq_len):
            window = stream[start : start + min(seq_len, left) + 1]
            if left > 0:
                cut.append(window)
            left -= len(window) - 1
    return cut


def packed(blocks) -> list[list[tuple[int, int]]]:
    windows = []
    for block in blocks:
        starts = block.span_starts + np.repeat(block.offsets[:-1], np.diff(block.span_offsets))
        documents = np.repeat(block.span_documents, np.diff(starts, append=len(block.ids)))
        for start, stop in zip(block.offsets[:-1], block.offsets[1:], strict=True):
            windows.append(
                list(
                    zip(
                        block.ids[start:stop].tolist(),
                        documents[start:stop].tolist(),
                        strict=True,
                    ),
                )
            )
        assert block.span_sources == [f"s{d % 3}" for d in block.span_documents.tolist()]
    return windows


documents_strategy = st.lists(st.lists(st.integers(0, 50), max_size=12), min_size=1, max_size=15)


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=60)
@given(
    documents=documents_strategy,
    seq_len=st.integers(1, 9),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    limit=st.none() | st.integers(1, 60),
)
def test_sequences_follow_the_definition(boundary, documents, seq_len, sizes, limit):
    blocks = pack_sequences(
        batches(documents, sizes),
        end_token_id=END,
        seq_len=seq_len,
        boundary=boundary,
        limit_predictions=limit,
    )
    assert packed(blocks) == expected_sequences(documents, seq_len, boundary, limit)


@pytest.mark.parametrize("boundary", ["pack", "document"])
@settings(max_examples=40)
@given(
    documents=documents_strategy,
    seq_len=st.integers(1, 5),
    block=st.integers(1, 4),
    limit=st.none() | st.integers(1, 60),
)
def test_packing_goes_on_from_every_block(boundary, documents, seq_len, block, limit):
    options = {
        "end_token_id": END,
        "seq_len": seq_len,
        "boundary": boundary,
        "limit_predictions": limit,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sequences, "SEQUENCES_PER_ROW_GROUP", block)
        complete = list(pack_sequences(batches(documents, [2]), **options))
        for done, stopped_at in enumerate(complete, 1):
            state = PackingState.from_json(asdict(stopped_at.state))
            rest = list(
                pack_sequences(
                    batches(documents, [3], state.position.record),
                    state=state,
                    **options,
                )
            )
            assert packed(rest) == packed(complete[done:])
            assert [b.first for b in rest] == [b.first for b in complete[done:]]


@pytest.mark.parametrize("boundary", ["pack", "document"])
def test_long_sequences_make_blocks_of_fewer(monkeypatch, boundary):
    monkeypatch.setattr(config, "TOKENS_PER_ROW_GROUP", 64 * 10)
    documents = [[1] * 1000] * 2
    blocks = list(
        pack_sequences(batches(documents, [1]), end_token_id=END, seq_len=10, boundary=boundary),
    )
    assert [len(block) for block in blocks[:-1]] == [64, 64, 64]
    assert sum(len(block.ids) - len(block) for block in blocks) == (
        2001 if boundary == "pack" else 2000
    )


def test_the_papers_windows():
    """2048 predictions from 2049 ids, one id shared; the last sequence keeps what is left."""
    ids = [(i * 7) % 97 for i in range(5000)]
    blocks = list(
        pack_sequences(batches([ids], [1]), end_token_id=END, seq_len=2048, boundary="pack"),
    )
    lengths = [np.diff(b.offsets).tolist() for b in blocks]
    assert lengths == [[2049, 2049, 5001 - 2 * 2048]]
    assert blocks[0].ids[2048] == blocks[0].ids[2049] == ids[2048]
