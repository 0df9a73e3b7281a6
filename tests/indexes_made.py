"""Indexes for tests: written by hand as their packages write them, or by the packages themselves."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

DTYPES = {1: "u1", 2: "<u2", 4: "<u4"}

INDEXER = """
import sys, transformers
from infini_gram import indexing
file = sys.argv.pop(1)
transformers.AutoTokenizer.from_pretrained = lambda *_, **__: transformers.PreTrainedTokenizerFast(tokenizer_file=file)
indexing.main()
"""


def write_tokengrams(path: Path, ids: list[int], width: int = 2) -> Path:
    """`path` and its `.idx`, the places of all suffixes in their order."""
    np.array(ids, DTYPES[width]).tofile(path)
    np.array(sorted(range(len(ids)), key=lambda place: ids[place:]), "<u8").tofile(path.with_suffix(".idx"))
    return path


def write_infini_gram(folder: Path, shards: list[list[list[int]]], width: int = 2, *, table: bool = True, numbered: bool = True) -> Path:
    """Documents of each shard with a separator before each; the table is of bytes, its entries as wide as the file needs."""
    folder.mkdir(exist_ok=True)
    for number, documents in enumerate(shards):
        ending = f".{number}" if numbered else ""
        ids = [i for document in documents for i in (256**width - 1, *document)]
        places = np.cumsum([0, *(width * (len(document) + 1) for document in documents)])[:-1]
        content = np.array(ids, DTYPES[width]).tobytes()
        (folder / f"tokenized{ending}").write_bytes(content)
        places.astype("<u8").tofile(folder / f"offset{ending}")
        if table:
            order = sorted(range(0, len(content), width), key=lambda place: content[place:])
            entry = math.ceil(math.log2(len(content)) / 8) if content else 0
            (folder / f"table{ending}").write_bytes(b"".join(place.to_bytes(entry, "little") for place in order))
    return folder


def build_tokengrams(path: Path, ids: np.ndarray, vocab: int) -> Path:
    """The same by tokengrams itself; skips where it is not installed."""
    tokengrams = pytest.importorskip("tokengrams", reason="needs tokengrams: pip install 'recallkit-lm[indexes]'")
    ids.tofile(path)
    tokengrams.MemmapIndex.build(str(path), str(path.with_suffix(".idx")), vocab)
    return path


def build_infini_gram(folder: Path, texts: Path, tokenizer: Path | None, *, version: int = 4, shards: int = 2) -> Path:
    """An index of JSON Lines by infini-gram's own indexer (bytes without `tokenizer`); skips where it is not installed."""
    pytest.importorskip("infini_gram", reason="needs infini-gram: pip install 'recallkit-lm[indexes]'")
    named = [f"--tokenizer={'gpt2' if tokenizer else None}", f"--token_dtype={'u16' if tokenizer else 'u8'}"][0 if tokenizer else 1 :]
    where = [f"--data_dir={texts}", f"--save_dir={folder}"]
    sizes = [f"--version={version}", f"--shards={shards}", "--mem=1", "--cpus=1", "--ulimit=1000"]
    command = [sys.executable, "-c", INDEXER, str(tokenizer), *where, *named, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    return folder
