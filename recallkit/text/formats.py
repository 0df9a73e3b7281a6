"""Formats of files: which suffix is read by which reader, and how a file becomes a shard."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from recallkit.errors import UserError
from recallkit.text.fasta import FastaShard
from recallkit.text.fields import FieldFinder
from recallkit.text.readers import COMPRESSION, JsonLinesShard, JsonShard, TextShard, compressed, suffix_of
from recallkit.text.tables import ArrowShard, CsvShard, ParquetShard

if TYPE_CHECKING:
    from recallkit.text.readers import Shard
    from recallkit.text.records import Vocabulary
    from recallkit.text.remote import AnyPath

_JSON, _COMMAS, _TABS, _TEXT = compressed(".json"), compressed(".csv"), compressed(".tsv"), compressed(".txt")

_DNA = compressed(".fa", ".fasta", ".fna")

_COMMON = (*COMPRESSION, ".parquet", ".arrow", *_TEXT)
_RARER = (*_JSON, *_COMMAS, *_TABS)
_IDS = (".npy", ".bin")
SUFFIXES = (*_COMMON, *_RARER, *_DNA, *_IDS)
KINDS_OF_FILES = ".jsonl, .json, .csv, .tsv, .txt, .fa (also .gz, .zst), .parquet, .arrow, and of token ids .npy, .bin"
"""The suffixes in words."""


_TYPED = re.compile(r"(.*\.bin):(u?int(?:8|16|32|64))", re.DOTALL | re.IGNORECASE)


class Reading(NamedTuple):
    """How files are read: fields of records; for token ids their vocabulary, if it is known, and the type of those in a `.bin` file."""

    finder: FieldFinder
    vocabulary: Vocabulary | None = None
    dtype: str | None = None


def shards_among(names: list[str]) -> list[str]:
    """Those of the files in a folder that are its text: FASTA files alone, or else `.jsonl`, `.parquet`, `.arrow` and `.txt` alone.

    `.json` and `.csv` files beside them mostly describe them. Where there is no text at all, files of ids. Hidden files are left out.
    """
    seen = [name for name in names if not any(part.startswith(".") for part in name.split("/"))]
    return next(
        (found for kinds in (_DNA, _COMMON, _RARER, _IDS) if (found := sorted(name for name in seen if suffix_of(name, kinds)))), []
    )


def file_shard(name: str, path: AnyPath, how: Reading, folder: str | None) -> Shard:
    """The shard in a file: `name` is shown, `folder` is the source of a text file that is one of many.

    Raises UserError for an unknown suffix.
    """
    suffix = suffix_of(path.name, SUFFIXES)
    if suffix is None:
        raise UserError("not a supported kind of file", where=name, remedy=f"give {KINDS_OF_FILES}")
    source, finder = path.name[: -len(suffix)], how.finder
    if suffix in _IDS:
        from recallkit.text.token_files import TokenFileShard

        return TokenFileShard(name, path, source, FieldFinder(), None, how.vocabulary, how.dtype)
    if how.dtype is not None:
        raise UserError("no file of token ids, which alone have a type", where=name, remedy=f"leave out :{how.dtype}")
    if suffix in COMPRESSION:
        return JsonLinesShard(name, path, source, finder, COMPRESSION[suffix])
    if suffix in _JSON:
        return JsonShard(name, path, source, finder, _JSON[suffix])
    if suffix in _COMMAS:
        return CsvShard(name, path, source, finder, _COMMAS[suffix])
    if suffix in _TABS:
        return CsvShard(name, path, source, finder, _TABS[suffix], "\t")
    if suffix in _DNA:
        return FastaShard(name, path, source, FieldFinder(), _DNA[suffix])
    if suffix == ".parquet":
        return ParquetShard(name, path, source, finder)
    if suffix == ".arrow":
        return ArrowShard(name, path, source, finder)
    # In a folder of text files each file would be a source of its own: the folder's name is more informative.
    return TextShard(name, path, source if folder is None else folder, FieldFinder(), _TEXT[suffix])


def split_dtype(argument: str) -> tuple[str, str | None]:
    """`train.bin:uint32` as the file and the type of its ids; None without a type."""
    found = _TYPED.fullmatch(argument)
    return (found[1], found[2].lower()) if found else (argument, None)
