"""Defaults, limits and the user's cache folder: the numbers that more than one module needs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError

if TYPE_CHECKING:
    from types import FrameType

VERSION = "0.1.0"
"""Of the program, as in pyproject.toml."""

DISTRIBUTION = "recallkit-lm"
"""What pip installs, as in pyproject.toml; the distribution `recallkit` of the package index is
another project's."""

SCHEMA_VERSION = 11
"""Version of all table schemas; readers refuse tables of another version."""

SEQ_LEN = 2048
"""Predictions per sequence (Zoology 3.1); a sequence has one id more."""

CHUNK_TOKENS = 1920
"""Tokens of a chunk of a recall evaluation (Based, arXiv 2402.18668, appendix E.3): with query and
answer it fits a context of 2,048."""

BUILTIN_SEQ_LEN = 256
"""The same for the built-in text: the sequence length that the models of the zoo were trained
on."""

MAX_COUNT = 1250
"""Largest training count at which Zoology calls a bigram rare: <= 1250 in 10B tokens (section
3.1)."""

MIN_CLUSTERS = 5
"""Clusters of equal size that a 95 % interval needs at least: of fewer, 2,000 resamples do not
reach its tails."""

NUM_HASHES = 2_000_000
"""Hashes kept of the training text's n-grams of each size, 8 bytes each: all of them up to about 2
million tokens, a sample beyond."""

SEQUENCES_PER_ROW_GROUP = 512
"""Most sequences per row group of every table of tokens: 512 x 2048 = 1,048,576 rows, the same in
slices and scores."""

TOKENS_PER_ROW_GROUP = 512 * 2048
"""Tokens that a row group has about at most: longer sequences make row groups of fewer, or memory
would grow with their length."""

SEQUENCES_PER_PART = 32
"""Sequences of one part of unfinished scores, or those of a row group if these are fewer; it
consists of whole parts."""


def sequences_per_row_group(seq_len: int, most: int = SEQUENCES_PER_ROW_GROUP) -> int:
    """The sequences of a row group: `most` up to 2048 predictions each, then fewer, in steps of
    SEQUENCES_PER_PART: 32 of 65,536.

    Of longer ones as many as have twice TOKENS_PER_ROW_GROUP, or one.
    """
    parts = TOKENS_PER_ROW_GROUP // (seq_len * SEQUENCES_PER_PART)
    fewest = min(SEQUENCES_PER_PART, max(1, 2 * TOKENS_PER_ROW_GROUP // seq_len))
    return min(most, max(fewest, parts * SEQUENCES_PER_PART))


SECONDS_BEFORE_NOTICE = 30.0
"""How long another process is waited for without a word."""

MAX_RESAMPLED_SOURCES = 100
"""The largest sources by tokens that get rows of their own, with intervals; further ones share a
row. If every document were a source, the sums per document and source would take gigabytes, and a
source of few documents has no meaningful interval."""

MAX_RECORD_BYTES = 50_000_000
"""Longest record that is read (one line, one text): anything longer is a broken file rather than a
document."""

MAX_PART_BYTES = 1 << 30
"""Most bytes of a file elsewhere that are read together, whatever their reader asks for."""

MAX_PROMPT_CHARACTERS = 4_000_000
"""Longest text of a row of an evaluation: about a million tokens, for which `tokenizers` takes 200
bytes a character."""

ENCODING_SECONDS = 60.0
ENCODING_CHARACTERS_PER_SECOND = 10_000
"""Encoding times out after ENCODING_SECONDS plus one second per ENCODING_CHARACTERS_PER_SECOND
characters, a hundred times what the slowest tokenizers take."""

MAX_VOCABULARY = 2**24
"""Largest vocabulary (largest id + 1) that is accepted: public tokenizers have up to a million
entries."""

MAX_TOKENIZER_BYTES = 2**29
"""Longest tokenizer.json that is read: public ones have up to 40 MB."""

MAX_GROWTH = 256
"""Largest factor by which a tokenizer's replacements may lengthen a text."""

MOST = 2**62
LONGEST = 2**24
"""Upper bounds of options: counts and lengths that fit into 64-bit arithmetic and into memory."""

is_program = False
"""Whether this process is the program's own, its command line or a worker, and not another's
program that imports recallkit."""


class _NoPandas:
    """An import hook that refuses pandas where the compiled code of pyarrow asks for it, called by
    this package or `pyarrow.dataset`.

    It does when it first converts an array from or to Python's or NumPy's, and converts the same if
    there is none. None of these modules imports pandas itself; all others get it.
    """

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name != "pandas":
            return
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").startswith("importlib."):
            frame = frame.f_back
        if frame is not None and frame.f_globals.get("__name__", "").startswith(
            (f"{__package__}.", "pyarrow.dataset")
        ):
            raise ModuleNotFoundError("no pandas for pyarrow", name=name)


def start_program() -> None:
    """Makes this process the program's own: what only its users' programs may need is not imported,
    which saves a third of a second."""
    global is_program
    is_program = True
    sys.meta_path.insert(0, _NoPandas)


def installing(extra: str) -> str:
    """The command that adds an optional dependency of ours, for remedies: its name is one of
    `optional-dependencies`."""
    return f'pip install "{DISTRIBUTION}[{extra}]"'


def check_installed(
    package: str, extra: str, *, where: str | None = None, otherwise: str = ""
) -> str:
    """The version of a distribution that an extra of ours installs.

    Raises UserError where it is missing; `otherwise`: what else can be done.

    By its metadata: a folder of that name would be imported as an empty package.
    """
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise UserError(
            f"{package} is not installed", where=where, remedy=f"{installing(extra)}{otherwise}"
        ) from error


def home() -> Path:
    """The cache folder: $RECALLKIT_HOME, or the platform's folder for caches."""
    folder = os.environ.get("RECALLKIT_HOME")
    if folder:
        return Path(folder)
    import platformdirs

    return Path(platformdirs.user_cache_dir("recallkit"))


def parse_amount(text: str) -> int:
    """A number of tokens as people write it: 1250, 10M, 1.5B, 16_000_000.

    Raises ValueError unless it is a positive whole number.
    """
    units = {"k": 10**3, "m": 10**6, "b": 10**9}
    cleaned = text.strip().lower().replace("_", "").replace(",", "")
    number, unit = (cleaned[:-1], units[cleaned[-1]]) if cleaned[-1:] in units else (cleaned, 1)
    amount = float(number) * unit
    if not 1 <= amount < 2**63 or amount != int(amount):
        raise ValueError(f"{text!r} is not a whole number of tokens")
    return int(amount)
