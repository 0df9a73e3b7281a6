"""Folders of slices made for a test: labels of a few tokens, models' NLLs of them, and comparisons
of these."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from recallkit.attribution.comparison import Comparison, read_comparison
from recallkit.attribution.tables import attribute_gap
from recallkit.slicing.definitions import parse_slices
from recallkit.storage import parquet_files
from recallkit.storage.schemas import arrow_schema
from tests.planted import gap_manifest, labels_manifest, scores_manifest
from tests.slicing.references import label_bigrams_reference

Token = tuple[int, int, str, int | None, int]
"""Sequence, position (from 1), source, tokens back to its bigram (None: it occurs first), training
count."""


class Corpus:
    """Tokens in `folder`, as `slice` and `score` would have written them.

    A match is as long as the distance is, a document is a sequence, and all ids differ, if
    `matches`, `documents` and `ids` (previous, token) do not say otherwise. `facts`: of the labels'
    manifest.
    """

    def __init__(
        self,
        folder: Path,
        tokens: Sequence[Token],
        *,
        documents: Sequence[int] | None = None,
        ids: Sequence[tuple[int, int]] | None = None,
        matches: Sequence[int] | None = None,
        overwritten: Sequence[bool] | None = None,
        in_training: Sequence[int] | None = None,
        max_count: int = 1250,
        seq_len: int = 64,
        rows_per_group: int = 5,
        **facts: Any,
    ) -> None:
        self.folder = folder
        self.rows: list[dict[str, Any]] = []
        for row, (sequence, position, source, distance, count) in enumerate(tokens):
            first = distance and distance + (self.rows[row - distance]["first_distance"] or 0)
            pair = ids[row] if ids else (row, row + 1)
            context = {pair[0], *(own["token"] for own in self.rows[row - position + 1 :])}
            context |= {own["prev_token"] for own in self.rows[row - position + 1 :][:1]}
            new = "token" if pair[1] in context else "new"
            self.rows.append(
                {
                    "sequence": sequence,
                    "position": position,
                    "document": documents[row] if documents else sequence,
                    "source": source,
                    "prev_token": pair[0],
                    "token": pair[1],
                    "repeated": distance is not None,
                    "context_class": new if distance is None else "bigram",
                    "distance": distance,
                    "first_distance": first,
                    "occurrences": 0,
                    "match_length": matches[row] if matches else distance or 0,
                    "overwritten": bool(overwritten and overwritten[row]),
                    "train_count": count,
                    "ar_hit": distance is not None and count <= max_count,
                    "in_training": in_training[row] if in_training else None,
                }
            )
        # Row groups have whole sequences.
        self._starts = [0]
        for row, token in enumerate(tokens):
            if token[1] == 1 and row - self._starts[-1] >= rows_per_group:
                self._starts.append(row)
        none = {"fraction": 1.0, "sampled": 0, "found": 0}
        known = {"tokens": 0, "ar_hits": 0, "of_ar_hits": 0, "ngrams": {"13": none, "50": none}}
        manifest = {
            "num_sequences": len({token[0] for token in tokens}),
            "seq_len": seq_len,
            "max_count": max_count,
            "in_training": known if in_training else None,
        }
        facts = labels_manifest(**{**manifest, **facts})
        self.path = self._write("tokens", "tokens", self.rows, facts)

    def score(self, model: str, nlls: Any, **facts: Any) -> Path:
        """Writes the NLLs of every token under a model; `facts`: of the manifest."""
        values = np.ravel(nlls).astype(np.float64)
        unknown = {"argmax": -1, "rank": 0, "context": 0, "exact": True}
        rows = [
            {"sequence": row["sequence"], "position": row["position"], "nll": nll, **unknown}
            for row, nll in zip(self.rows, values, strict=True)
        ]
        return self._write(f"scores/{model}", "scores", rows, scores_manifest(model, **facts))

    def _write(
        self, name: str, layout: str, rows: list[dict[str, Any]], facts: dict[str, Any]
    ) -> Path:
        table, path = (
            pa.Table.from_pylist(rows, arrow_schema(layout)),
            self.folder / f"{name}.parquet",
        )
        ends = [*self._starts[1:], len(rows)]
        parts = [
            table.slice(start, end - start) for start, end in zip(self._starts, ends, strict=True)
        ]
        parquet_files.write_parquet(path, parts, table.schema, {"num_rows": len(rows), **facts})
        return path


def random_corpus(folder: Path, seed: int, *, sequences: int = 12, length: int = 20) -> Corpus:
    """Few ids, labelled as the references label them, in documents of very different lengths from
    three sources."""
    rng = np.random.default_rng(seed)
    texts = [rng.integers(0, 5, rng.integers(2, length + 1)).tolist() for _ in range(sequences)]
    labels = itertools.chain.from_iterable(map(label_bigrams_reference, texts))
    back = [distance if distance > 0 else None for distance, *_ in labels]
    size = len(back)
    documents = np.cumsum(rng.random(size) < rng.choice([0.02, 0.3], size)).tolist()
    places = [
        (sequence, place) for sequence, text in enumerate(texts) for place in range(1, len(text))
    ]
    sources = ["abca"[document % 4] for document in documents]
    counts = rng.choice([0, 1, 4, 5, 6, 1250, 1251, 10**7], size).tolist()
    return Corpus(
        folder,
        [(*place, *of) for place, *of in zip(places, sources, back, counts, strict=True)],
        documents=documents,
        ids=[pair for text in texts for pair in itertools.pairwise(text)],
        matches=[int(rng.integers(1, length)) if distance else 0 for distance in back],
        in_training=rng.choice([0, 0, 13, 50], size).tolist(),
        max_count=5,
        seq_len=length,
    )


# ---------------------------------------------------------------------- comparisons of known models

SIZE = 8
"""Tokens of a document: a first occurrence, its two returns, AR hits, another repeated token, and
four that repeat nothing."""


class Model(NamedTuple):
    """Mean probabilities of AR hits and of the first occurrences of their bigrams; nats above the
    reference on other tokens.

    In half of the documents AR hits are so much more probable and in half so much less, as a part
    of it; so are other nats.
    """

    hit: float = 0.5
    first: float = 0.1
    other: float = 0.0
    hit_spread: float = 0.0
    other_spread: float = 0.0

    def nlls(self, documents: int) -> np.ndarray:
        """In nats, (documents, SIZE)."""
        sign = np.where(np.arange(documents) % 2, 1, -1)
        hit = -np.log(self.hit * (1 + sign * self.hit_spread))
        other = 4 + self.other + sign * self.other_spread
        first = np.full(documents, -np.log(self.first))
        return np.stack([first, hit, hit, other - 3, *[other] * 4], axis=1)


REFERENCE = Model()
"""It gains 40 points on AR hits."""


def scored(
    folder: Path,
    models: Mapping[str, Model],
    documents: int = 40,
    with_hits: int = 10**9,
    **facts: Any,
) -> tuple[Path, dict[str, Path]]:
    """Labels, and the score file of each model; sources take turns after two documents.

    Only the first `with_hits` documents repeat anything. `facts`: of the labels, beside a largest
    training count of 8.
    """
    back, counts = (None, 1, 2, 1, *[None] * 4), (9, 0, 3, 2000, 5, 5000, 5, 5000)
    tokens: list[Token] = []
    for document in range(documents):
        source = ("books", "letters")[document // 2 % 2]
        own = back if document < with_hits else [None] * SIZE
        tokens += [
            (document, place + 1, source, own[place], counts[place]) for place in range(SIZE)
        ]
    corpus = Corpus(folder, tokens, rows_per_group=100, **{"max_count": 8, **facts})
    return corpus.path, {
        name: corpus.score(name, model.nlls(documents)) for name, model in models.items()
    }


def compared(
    folder: Path,
    models: Mapping[str, Model],
    reference: Model = REFERENCE,
    *,
    slices: Sequence[str] = (),
    documents: int = 40,
    with_hits: int = 10**9,
    **facts: Any,
) -> Comparison:
    """Models compared with `ref`, written and read back; see `scored`."""
    labels, scores = scored(folder, {"ref": reference, **models}, documents, with_hits, **facts)
    first, *others = scores.values()
    requested = parse_slices(slices)
    tables = attribute_gap(labels, first, others, slices=requested)
    manifest = gap_manifest(
        "ref",
        list(models),
        slice=[slice_.option for slice_ in requested],
        slices=parquet_files.read_manifest(labels),
    )
    parquet_files.write_frames(tables, folder / "gap", manifest)
    return read_comparison(folder / "gap")
