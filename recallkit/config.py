"""Defaults, limits and the user's cache folder: every number that more than one module needs, once."""

from __future__ import annotations

import os
from pathlib import Path

SCHEMA_VERSION = 1
"""Version of every table's layout; a reader refuses tables of another one."""

SEQ_LEN = 2048
"""Predictions in a sequence (Zoology 3.1): a sequence holds one id more."""

BUILTIN_SEQ_LEN = 256
"""The same for the embedded text: what the models of the zoo were trained to read."""

MAX_COUNT = 1250
"""Largest training count of a bigram that still counts as rare (Zoology 3.1: <= 1250 in 10B tokens)."""

SEQUENCES_PER_ROW_GROUP = 512
"""Row groups of every table of tokens: 512 x 2048 = 1,048,576 rows, the same in slices and scores."""

MAX_RESAMPLED_SOURCES = 100
"""Sources with intervals of their own, the largest by tokens: where every document is a source, sums of each sequence by
every source would take gigabytes, and a source of few sequences has no interval worth reading."""

MAX_RECORD_BYTES = 50_000_000
"""Longest record read (one line, one text): anything longer is a broken file rather than a document."""

ENCODING_SECONDS = 60.0
ENCODING_CHARACTERS_PER_SECOND = 10_000
"""A tokenizer is given up where it takes longer than so many seconds, and one more for so many characters: that is a hundred
times what the slowest ones take."""

MAX_VOCABULARY = 2**24
"""Most entries of a tokenizer, its largest id included: public ones have up to a million."""

MAX_TOKENIZER_BYTES = 2**29
"""Longest tokenizer.json that is read: public ones have up to 40 MB."""

MAX_GROWTH = 256
"""How many times longer a tokenizer's replacements may make a text."""

MOST = 2**62
LONGEST = 2**24
"""Bounds of options: counts and lengths that arithmetic in 64 bits and memory can hold."""


def home() -> Path:
    """The cache folder: $RECALLKIT_HOME, or the platform's place for caches."""
    given = os.environ.get("RECALLKIT_HOME")
    if given:
        return Path(given)
    import platformdirs

    return Path(platformdirs.user_cache_dir("recallkit"))


def parse_amount(text: str) -> int:
    """A number of tokens as people write it: 1250, 10M, 1.5B, 16_000_000.

    Raises ValueError where it is not a whole, positive number.
    """
    units = {"k": 10**3, "m": 10**6, "b": 10**9}
    cleaned = text.strip().lower().replace("_", "").replace(",", "")
    number, unit = (cleaned[:-1], units[cleaned[-1]]) if cleaned[-1:] in units else (cleaned, 1)
    amount = float(number) * unit
    if not 1 <= amount < 2**63 or amount != int(amount):
        raise ValueError(f"{text!r} is not a whole number of tokens")
    return int(amount)
