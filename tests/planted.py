"""Manifests as the stages write them, for tables that a test makes itself."""

from __future__ import annotations

from typing import Any

from recallkit.config import SCHEMA_VERSION

TOKENIZER = {"name": "t", "digest": "t", "vocab_size": 10**9, "end_token": "<e>", "end_token_id": 0}
COUNTS = {
    "id": "c",
    "path": "counts.duckdb",
    "num_tokens": 1000,
    "num_bigrams": 9,
    "boundary": "pack",
    "unseen": None,
}
OPTIONS = {"model_digest": "m", "sequences_digest": "d", "dtype": "float32"}


def labels_manifest(**facts: Any) -> dict[str, Any]:
    """Of `tokens.parquet`."""
    known = {
        "kind": "tokens",
        "schema_version": SCHEMA_VERSION,
        "options": {"sequences_digest": "d", "counts_id": "c", "max_count": 8},
        "sequences_digest": "d",
        "boundary": "window",
        "tokenizer": TOKENIZER,
        "sources": [],
        "names": ["text"],
        "limit_tokens": None,
        "counts": COUNTS,
        "threshold": None,
        "in_training": None,
        "unseen": None,
        "num_bytes": None,
    }
    return {**known, **facts}


def scores_manifest(model: str, **facts: Any) -> dict[str, Any]:
    """Of a file of scores."""
    known = {
        "kind": "scores",
        "schema_version": SCHEMA_VERSION,
        "options": OPTIONS,
        **OPTIONS,
        "model": model,
        "source": model,
        "prefix": {"ids": [], "token": "", "reason": ""},
        "tokenizer": None,
        "read_exactly": None,
    }
    return {**known, **facts}


def gap_manifest(reference: str, models: list[str], **facts: Any) -> dict[str, Any]:
    """Of a comparison; `slices` is to be given."""
    named = {"reference": reference, "models": models}
    known = {
        "kind": "gap",
        "schema_version": SCHEMA_VERSION,
        "options": named,
        **named,
        "score_files": {name: f"{n}.parquet" for n, name in enumerate((reference, *models))},
        "scores": dict.fromkeys((reference, *models), OPTIONS),
        "cluster": "document",
        "prefixes": {},
        "inexact": {},
        "inputs": "i",
    }
    return {**known, **facts}
