"""What the zoo's models are trained on: windows of text, lists of keys and values, and how a step mixes them.

See `train_zoo.py`. Only `prepare` and `count` need more than numpy.
"""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

DEMO = "demo:train"
"""The text that every model sees, whatever the shards: a source as `recallkit` names them; `readmes` are added to it."""
CONTEXT = 256
HELD_OUT = 256
"""Number of held-out windows, for the loss curves."""
BATCH = 4
"""Rows of CONTEXT predictions in a step."""
LIST_EVERY = 4
"""While a model learns text, the last row of every so many steps is a list: one row in 16."""
VOCAB_SIZE = 4096
END = 0
"""The end token of the built-in tokenizer, which precedes each document."""
SEED = 0
_DIGESTED_BYTES = 1 << 20


# ----------------------------------------------------------------------------------------------------------------- text


def prepare(args: argparse.Namespace) -> None:
    """Writes windows.npy, uint16 (n, CONTEXT + 1), in the order of training; held_out.npy; and a manifest of their sources."""
    if not 0 < args.demo_share <= 1:
        raise SystemExit(f"--demo-share {args.demo_share:g}: give a share above 0, at most 1")
    others = documents_of(args.shards, set(args.leave_out)) if args.shards else []
    ids, manifest = encoded_documents(mixed([*documents_of([DEMO]), *readmes()], others, args.demo_share))
    num_windows = max(0, (len(ids) - 1) // CONTEXT)
    if num_windows <= HELD_OUT:
        raise SystemExit(f"{len(ids):,} tokens make {num_windows} windows, and {HELD_OUT} are held out: give more text with --shards")
    windows = np.lib.stride_tricks.sliding_window_view(ids, CONTEXT + 1)[::CONTEXT]
    training = windows[:-HELD_OUT][np.random.default_rng(SEED).permutation(len(windows) - HELD_OUT)].copy()
    args.data.mkdir(parents=True, exist_ok=True)
    np.save(args.data / "windows.npy", training)
    np.save(args.data / "held_out.npy", windows[-HELD_OUT:])
    (args.data / "manifest.json").write_text(json.dumps(manifest, indent=2))
    print(f"{len(training):,} windows of {CONTEXT} predictions in {args.data}: {manifest['tokens_of_source']}", file=sys.stderr)


def documents_of(sources: list[str], leave_out: AbstractSet[str] = frozenset()) -> list[tuple[str, str]]:
    """Set and text of each document of the sources, without those of the sets to leave out."""
    from recallkit.text.corpus import open_corpus

    return [(document.source, document.text) for document in open_corpus(sources).documents() if document.source not in leave_out]


def readmes() -> list[tuple[str, str]]:
    """Set and text of the descriptions of installed packages, but for the tenth of the names that is validation text."""
    from recallkit.recall.tasks import installed_projects
    from recallkit.text.demo_text import is_validation

    return [("readme", each.description) for each in installed_projects() if each.description and not is_validation(each.name)]


def mixed(demo: list[tuple[str, str]], others: list[tuple[str, str]], demo_share: float) -> list[tuple[str, str]]:
    """All of the demo's documents, and as many randomly drawn others as give the demo `demo_share` of the characters.

    Shuffled; the last one drawn may exceed the share, and with too few others the demo has more.
    """
    rng = np.random.default_rng(SEED)
    chosen, wanted = list(demo), sum(len(text) for _, text in demo) * (1 - demo_share) / demo_share
    for i in rng.permutation(len(others)):
        if wanted <= 0:
            break
        chosen.append(others[i])
        wanted -= len(others[i][1])
    return [chosen[i] for i in rng.permutation(len(chosen))]


def encoded_documents(documents: list[tuple[str, str]]) -> tuple[np.ndarray, dict[str, Any]]:
    """Sets and texts -> their ids in one stream, uint16, each document preceded by an end token, and the composition of the stream."""
    from recallkit.text.tokenizers import load_tokenizer

    tokenizer = load_tokenizer(None)
    encoded = tokenizer.backend.encode_batch([text for _, text in documents], add_special_tokens=False)
    tokens_of_source: dict[str, int] = {}
    for (source, _), encoding in zip(documents, encoded, strict=True):
        tokens_of_source[source] = tokens_of_source.get(source, 0) + len(encoding.ids) + 1
    stream = np.concatenate([np.array([tokenizer.end_token_id, *encoding.ids], np.uint16) for encoding in encoded])
    return stream, {"tokenizer": tokenizer.name, "tokenizer_digest": tokenizer.digest, "tokens_of_source": tokens_of_source}


def count(args: argparse.Namespace) -> None:
    """Writes training_bigrams.parquet: first, second, count of every bigram of text that a run of --tokens predicts; not of lists.

    In its footer is what `count` measures of any text, too: the share of a document's bigrams that the others do not have.
    """
    import polars as pl

    from recallkit.counting.bigram_kernels import BigramRun
    from recallkit.counting.unseen import sample_document, unseen_elsewhere
    from recallkit.storage.artifacts import MANIFEST_KEY

    by_document = bigrams_by_document(np.load(args.data / "windows.npy", mmap_mode="r"), rows_before(num_steps(args.tokens)))
    keys, counts = np.unique(np.concatenate(by_document), return_counts=True)
    table = pl.DataFrame({"first": keys >> 32, "second": keys & 0xFFFFFFFF, "count": counts}).cast(pl.UInt32)
    hashes = np.random.default_rng(SEED).permutation(len(by_document)).tolist()
    sample = [sample_document(hashed, bigrams) for hashed, bigrams in zip(hashes, by_document, strict=True)]
    facts = {"unseen": unseen_elsewhere(sample, BigramRun(keys, counts.astype(np.uint64)))}
    args.to.mkdir(parents=True, exist_ok=True)
    path, footer = args.to / "training_bigrams.parquet", {MANIFEST_KEY.decode(): json.dumps(facts)}
    table.write_parquet(path, compression="zstd", compression_level=19, metadata=footer)
    print(f"{len(table):,} bigrams, {counts.sum():,} tokens, {facts}", file=sys.stderr)


def bigrams_by_document(windows: np.ndarray, num_seen: int) -> list[np.ndarray]:
    """The bigrams of each document of the text, first << 32 | second, among those that the first `num_seen` windows predict.

    `windows` (n, CONTEXT + 1) are those of `prepare`, in the order of training; documents begin with an end token, and so the bigram that
    ends in it is of the one before.
    """
    place = np.argsort(np.random.default_rng(SEED).permutation(len(windows)))  # of each window of the text in the order of training
    text = windows[place].astype(np.uint64)
    first, second = text[:, :-1], text[:, 1:]
    document = np.cumsum(first == END).reshape(first.shape)
    is_seen = place < num_seen
    bigrams, document = (first << np.uint64(32) | second)[is_seen].ravel(), document[is_seen].ravel()
    return np.split(bigrams, np.flatnonzero(np.diff(document)) + 1)


def rows_before(step: int) -> int:
    """Windows of text that the steps before this one read, where one row of every LIST_EVERY steps is a list."""
    return step * BATCH - step // LIST_EVERY


def num_steps(tokens: int) -> int:
    """Steps of a run that predicts at least so many tokens of text."""
    steps = tokens // (BATCH * CONTEXT)
    while rows_before(steps) * CONTEXT < tokens:
        steps += 1
    return steps


def digest_windows(windows: np.ndarray) -> str:
    """A digest of windows without reading all of them: of their shape, and the first and the last MiB."""
    rows = max(1, _DIGESTED_BYTES // windows[0].nbytes)
    parts = (str((windows.shape, windows.dtype.str)).encode(), windows[:rows].tobytes(), windows[-rows:].tobytes())
    return hashlib.blake2b(b"".join(parts), digest_size=16).hexdigest()


# ---------------------------------------------------------------------------------------------------------------- lists


class Rows(NamedTuple):
    """Rows of a step: text, of which every token is predicted, or lists, of which the requested values are."""

    ids: np.ndarray
    """(n, t + 1) int64"""
    asked: np.ndarray
    """(n, t) bool: whether the loss has the prediction of id i + 1 after ids 0 to i."""


LIST_IDS = np.random.default_rng(SEED).permutation(VOCAB_SIZE - 1) + 1
"""All ids but the end token, in the order in which lists begin to have them."""


def make_lists(rng: np.random.Generator, num_rows: int, length: int, pairs: Sequence[int], num_ids: int = len(LIST_IDS)) -> Rows:
    """Key-value lists, `length` predictions each: some pairs, and then pairs of these at random until the row is full.

        k1 v1 k2 v2 k3 v3  k2 v2 k3 v3 k3 v3 k1 v1 ...

    The number of pairs of a row is one of `pairs`; its keys and values are drawn from the first `num_ids` of LIST_IDS, without
    repetition. Only values of keys that were there before are asked for. (Zoology's MQAR, of `recallkit.mqar.sequences`, asks once.)
    """
    places = length // 2 + 1
    ids, asked = np.empty((num_rows, 2 * places), np.int64), np.zeros((num_rows, 2 * places - 1), bool)
    for row, row_asked in zip(ids, asked, strict=True):
        num = int(rng.choice(pairs))
        drawn = LIST_IDS[rng.choice(num_ids, 2 * num, replace=False)]
        order = np.concatenate([np.arange(num), rng.integers(0, num, places - num)])
        row[0::2], row[1::2] = drawn[:num][order], drawn[num:][order]
        row_asked[2 * num :: 2] = True
    return Rows(ids[:, : length + 1], asked[:, :length])


def repeat_spans(windows: np.ndarray) -> np.ndarray:
    """In each window, a span of 16 to 127 ids from anywhere in it replaces as many ids anywhere after it; asked (n, t): the copy's ids.

    The first id of the copy is not asked for: what is being copied is not known before it.
    """
    rng = np.random.default_rng(SEED)
    size = windows.shape[1]
    asked = np.zeros((len(windows), size - 1), bool)
    for window, row_asked in zip(windows, asked, strict=True):
        length = int(rng.integers(16, size // 2))
        first = int(rng.integers(0, size - 2 * length + 1))
        second = int(rng.integers(first + length, size - length + 1))
        window[second : second + length] = window[first : first + length]
        row_asked[second : second + length - 1] = True
    return asked


def random_rows(num_rows: int) -> np.ndarray:
    """Rows of ids drawn uniformly from all but the end token, (n, CONTEXT + 1) int64."""
    return np.random.default_rng(SEED).integers(1, VOCAB_SIZE, (num_rows, CONTEXT + 1))


def text_rows(windows: np.ndarray, step: int, pairs: Sequence[int]) -> Rows:
    """The rows of a step of text: the next windows, in their order, and in every LIST_EVERY-th step a list in place of the last."""
    ids = windows[rows_before(step) : rows_before(step + 1)].astype(np.int64)
    asked = np.ones((len(ids), CONTEXT), bool)
    if len(ids) == BATCH:
        return Rows(ids, asked)
    lists = make_lists(np.random.default_rng([SEED, step]), BATCH - len(ids), CONTEXT, pairs)
    return Rows(np.concatenate([ids, lists.ids]), np.concatenate([asked, lists.asked]))
