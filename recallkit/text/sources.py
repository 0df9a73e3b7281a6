"""What a source can be (presets, hub ids, files, folders, globs, URLs), and its shards, in an order
that follows from names alone."""

from __future__ import annotations

import atexit
import difflib
import glob
import itertools
import os
import re
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from recallkit.errors import UserError, redacted
from recallkit.registry import may_be_hub_id
from recallkit.storage import artifacts
from recallkit.storage.given_files import read_file
from recallkit.text.demo_text import demo_shard
from recallkit.text.fasta import FastaShard
from recallkit.text.fields import FieldFinder, parse_json
from recallkit.text.places import RemotePath, files_below, is_url
from recallkit.text.readers import (
    BLOCK_BYTES,
    FileShard,
    JsonLinesShard,
    JsonShard,
    TextShard,
    compressed,
    suffix_of,
)
from recallkit.text.rows import HubShard
from recallkit.text.tables import ArrowShard, CsvShard, ParquetShard, TsvShard

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.text.places import AnyPath
    from recallkit.text.readers import Shard
    from recallkit.text.records import Vocabulary


class Preset(NamedTuple):
    """A dataset on the hub under a short name."""

    repo: str
    revision: str | None
    splits: tuple[str, ...]
    description: str


_ONE, _ALL = ("train",), ("train", "validation", "test")
# `datasets` no longer runs scripts: for datasets that have one, the hub's own conversion to Parquet
# is read.
PRESETS = {
    "pile": Preset(
        "monology/pile-uncopyrighted",
        None,
        _ALL,
        "the Pile less its copyrighted sets (EleutherAI/pile is gone)",
    ),
    "redpajama": Preset(
        "togethercomputer/RedPajama-Data-1T-Sample",
        "refs/convert/parquet",
        _ONE,
        "the RedPajama 1T sample of 1B tokens",
    ),
    "slimpajama": Preset(
        "cerebras/SlimPajama-627B",
        None,
        _ALL,
        "SlimPajama: RedPajama cleaned and deduplicated, 627B tokens",
    ),
}

_GROUPS: tuple[dict[type[FileShard] | None, tuple[str, ...]], ...] = (
    {FastaShard: compressed(".fa", ".fasta", ".fna")},
    {
        JsonLinesShard: compressed(".jsonl", ".ndjson"),
        ParquetShard: (".parquet",),
        ArrowShard: (".arrow",),
        TextShard: compressed(".txt"),
    },
    {None: (".npy", ".bin")},
    {JsonShard: compressed(".json"), CsvShard: compressed(".csv"), TsvShard: compressed(".tsv")},
)
"""What reads files of which suffixes; those of ids `token_files`, which needs NumPy.

In a folder the files of the first group that it has are its text: `.json` and `.csv` files beside
others mostly describe them.
"""
_READERS: dict[str, type[FileShard] | None] = {}
for _group in _GROUPS:
    for _reader, _suffixes in _group.items():
        _READERS |= dict.fromkeys(_suffixes, _reader)
_TEXT_FILES = ".jsonl, .ndjson, .json, .csv, .tsv, .txt, .fa (also .gz, .zst), .parquet, .arrow"
KINDS_OF_FILES = f"{_TEXT_FILES}, and of token ids .npy, .bin"
"""The suffixes in words."""

_TYPED = re.compile(r"(.*\.(?:bin|npy)):(u?int(?:8|16|32|64))", re.DOTALL | re.IGNORECASE)
"""`train.bin:uint32`: a file of ids and their type."""
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_OLD_HUB_ID = re.compile(r"[\w-][\w.-]*")
_WORDS_OF_A_NAME = 6
"""What has more words is hardly a file."""
_LARGEST_LIST = 1 << 20
"""Bytes of a list of files that is looked for among texts: of thousands."""


class Reading(NamedTuple):
    """How files are read: fields of records; of token ids the vocabulary and the type, if known."""

    finder: FieldFinder
    vocabulary: Vocabulary | None = None
    dtype: str | None = None


def describe_sources() -> list[tuple[str, str]]:
    """What a source can be: name and one line each."""
    presets = []
    for name, preset in PRESETS.items():
        splits = ", ".join(f"{name}:{split}" for split in preset.splits)
        presets.append((name, f"{preset.description}; {splits}"))
    return [_DEMO, *presets, *_OTHER_SOURCES]


_SPLITS_OF_DEMO = "demo:validation is shipped, demo:train is the running Python's"
_DEMO = ("demo", f"CPython's library and language reference: {_SPLITS_OF_DEMO}")
_ON_THE_HUB = "any dataset on the hub with a text field, streamed"
_ELSEWHERE = "hf://, https://, and s3://, gs:// ... with s3fs, gcsfs ... installed"
_OTHER_SOURCES = (
    (
        "OWNER/NAME[[:CONFIG]:SPLIT]",
        f"{_ON_THE_HUB} (also as wikitext:wikitext-2-raw-v1:test)",
    ),
    ("FILE, FOLDER, GLOB", f"local files: {KINDS_OF_FILES}"),
    (
        "FILE.bin:TYPE, FILE.npy:TYPE",
        "token ids of a type such as uint32; ids need --tokenizer",
    ),
    ("-", "JSON Lines from standard input, also compressed; copied to a temporary file"),
    ("FOLDER[:SPLIT]", "what save_to_disk of `datasets` wrote"),
    ("PROTOCOL://...", f"the same files elsewhere, by fsspec: {_ELSEWHERE}"),
)


def shards_of(argument: str, how: Reading, default_split: str) -> list[Shard]:
    """The shards of one argument: see `open_corpus`.

    Raises UserError for a source that is missing, empty or of an unknown suffix.
    """
    if not argument:
        raise UserError("an empty source name", remedy="is a shell variable unset?")
    if argument == "-":
        return [JsonLinesShard(_STANDARD_INPUT, "stdin", how.finder, _spooled())]
    if typed := _TYPED.fullmatch(argument):
        argument, how = typed[1], how._replace(dtype=typed[2].lower())
    if is_url(argument):
        return _elsewhere(argument, how, default_split)
    name, _, rest = argument.partition(":")
    split = rest or default_split
    if name == "demo":
        return [demo_shard(split)]
    if name in PRESETS:
        return [_preset_shard(name, split, how)]
    path = _expanded(argument)
    if os.path.lexists(path):
        return _unique(_shards_at(argument, path, how, default_split))
    if glob.has_magic(argument):
        # Sorted by name, as if the shell had expanded it.
        # `Path.glob` takes no absolute pattern.
        matches = sorted(glob.glob(str(path), recursive=True))  # noqa: PTH207
        matches = [file for file in matches if not _is_list(Path(file))]
        shards = []
        for file in _some(matches, argument):
            shards += _shards_at(file, Path(file), how, is_match=True)
        return _unique(shards)
    if rest and (_expanded(name) / _SPLITS).is_file():
        return _unique(_shards_at(name, _expanded(name), how, rest))
    if (shard := _hub_shard(name, rest, default_split, how)) is not None:
        return [shard]
    remedy = "check the path; `recallkit sources` lists what a source can be"
    if near := difflib.get_close_matches(name, ["demo", *PRESETS], n=1):
        remedy = f"did you mean {near[0]}?"
    if len(argument.split()) > _WORDS_OF_A_NAME:
        remedy = "in Python, give texts themselves as texts="
    raise UserError("no such file, folder or preset", where=argument, remedy=remedy)


_STANDARD_INPUT = "standard input"


@cache
def _spooled() -> Path:
    """A copy of standard input, which can be read once, until this process ends."""
    stream = getattr(sys.stdin, "buffer", None)  # none in a notebook
    if stream is None or stream.isatty():
        remedy = "pipe JSON Lines into recallkit"
        raise UserError("no text comes from it", where=_STANDARD_INPUT, remedy=remedy)
    with tempfile.NamedTemporaryFile(prefix="recallkit-", suffix=".jsonl", delete=False) as copy:
        path = Path(copy.name)
        atexit.register(path.unlink, missing_ok=True)
        shutil.copyfileobj(stream, copy, BLOCK_BYTES)
    return path


def _elsewhere(argument: str, how: Reading, default_split: str) -> list[Shard]:
    """The files at a URL: those that a pattern matches, a file, if it has a file's suffix, or those
    in a folder."""
    path = RemotePath(argument)
    name, _, split = argument.rpartition(":")
    try:
        if path.is_pattern:
            files = _some(path.matches(), argument)
            return _unique([_file_shard(file.url, file, how) for file in files])
        if suffix_of(path.name, _READERS) is not None:
            path.info()
            return [_file_shard(argument, path, how)]
        if is_url(name) and "/" not in split and _SPLITS in files_below(RemotePath(name)):
            return _unique(_shards_at(name, RemotePath(name), how, split))
        return _unique(_shards_at(argument, path, how, default_split))
    except OSError as error:
        why = "no such file, or no answer" if isinstance(error, FileNotFoundError) else error
        remedy = "check the address, the network and your rights"
        raise UserError(f"cannot be read ({why})", where=argument, remedy=remedy) from error


def _some(matches: list[Any], pattern: str) -> list[Any]:
    """What a pattern matches. Raises UserError if it is nothing."""
    if not matches:
        remedy = "check the pattern, and quote it to keep the shell from it"
        raise UserError("matches no file", where=pattern, remedy=remedy)
    return matches


def _expanded(argument: str) -> Path:
    """The path with a leading ~ expanded, if there is such a user."""
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        return Path(argument)


def _preset_shard(name: str, split: str, how: Reading) -> Shard:
    preset = PRESETS[name]
    if split not in preset.splits:
        remedy = f"choose {' or '.join(f'{name}:{known}' for known in preset.splits)}"
        raise UserError(f"no such split: {split}", where=name, remedy=remedy)
    return HubShard(f"{name}:{split}", name, how.finder, preset.repo, split, preset.revision)


def _hub_shard(name: str, rest: str, default_split: str, how: Reading) -> Shard | None:
    """The dataset on the hub, if `name` can be one; `rest` is `SPLIT` or `CONFIG:SPLIT`.

    Ids without an owner need the latter.
    """
    first, colon, second = rest.partition(":")
    config, split = (first or None, second) if colon else (None, first)
    split = split or default_split
    is_id = _HUB_ID.fullmatch(name) and suffix_of(name, _READERS) is None and may_be_hub_id(name)
    if not is_id and not (config and _OLD_HUB_ID.fullmatch(name)):
        return None
    shown = f"{name}:{split}" if config is None else f"{name}:{config}:{split}"
    return HubShard(shown, name.rpartition("/")[2], how.finder, name, split, config=config)


# -------------------------------------------------------------------------------------------- files


def _unique(shards: Sequence[FileShard]) -> list[Shard]:
    """The shards of one argument, each file once, even if links or a glob name it again."""
    by_place: dict[str, Shard] = {}
    for shard in shards:
        path = shard.path
        place = path.url if isinstance(path, RemotePath) else os.path.realpath(path)
        by_place.setdefault(place, shard)
    return list(by_place.values())


def _shards_at(
    name: str,
    path: AnyPath,
    how: Reading,
    split: str = "",
    *,
    is_match: bool = False,
) -> list[FileShard]:
    """A file; the files of a folder that `datasets` saved; or those of text in a folder and its
    subfolders, by relative path."""
    if isinstance(path, Path) and not path.is_dir():
        return [_file_shard(name, path, how)]
    names = files_below(path)
    if (saved := _saved_files(name, path, names, split)) is not None:
        return [replace(_file_shard(str(file), file, how), source=path.name) for file in saved]
    texts = [text for text in _texts_among(names) if not _is_list(path / text)]
    if not texts and not is_match:
        remedy = f"name the folder that contains the shards: {KINDS_OF_FILES}"
        raise UserError("no file of text in this folder", where=name, remedy=remedy)
    return [_file_shard(f"{name.rstrip('/')}/{text}", path / text, how) for text in texts]


def _texts_among(names: list[str]) -> list[str]:
    """Those of the files in a folder that are its text, sorted; hidden files are left out."""
    visible = sorted(name for name in names if "/." not in f"/{name}")
    for group in _GROUPS:
        suffixes = [*itertools.chain.from_iterable(group.values())]
        if files := [name for name in visible if suffix_of(name, suffixes)]:
            return files
    return []


def _is_list(path: AnyPath) -> bool:
    """Whether a file is a list of recallkit's, as beside counts in the folder of their text."""
    if not isinstance(path, Path) or path.suffix != ".json" or not path.is_file():
        return False
    return path.stat().st_size < _LARGEST_LIST and artifacts.is_stamped(path)


def file_shard(path: Path, finder: FieldFinder) -> FileShard:
    """The shard in a file of this machine, by its suffix. Raises UserError for an unknown one."""
    return _file_shard(str(path), path, Reading(finder))


def _file_shard(name: str, path: AnyPath, how: Reading) -> FileShard:
    """The shard in a file: `name` is shown."""
    if not str(path).isprintable():  # nor are the surrogates in names that are not UTF-8
        raise UserError("a name with characters that are not text", where=name, remedy="rename it")
    if isinstance(path, RemotePath):
        name = redacted(name)
    if isinstance(path, Path) and not path.exists():
        remedy = "it is a broken link, or was moved: fix or remove it, or copy it again"
        raise UserError("no such file", where=name, remedy=remedy)
    suffix = suffix_of(path.name, _READERS)
    if suffix is None or (isinstance(path, Path) and not path.is_file()):
        raise UserError("not a supported kind of file", where=name, remedy=f"give {KINDS_OF_FILES}")
    source, reader = _own_name(path), _READERS[suffix]
    if reader is None:
        from recallkit.text.token_files import TokenFileShard

        return TokenFileShard(name, source, FieldFinder(), path, how.vocabulary, how.dtype)
    if how.dtype is not None:
        problem = "only files of token ids have a type"
        raise UserError(problem, where=name, remedy=f"leave out :{how.dtype}")
    has_fields = reader not in (TextShard, FastaShard)
    return reader(name, source, how.finder if has_fields else FieldFinder(), path)


def _own_name(path: AnyPath) -> str:
    """The name of a file without its suffix."""
    return path.name[: len(path.name) - len(suffix_of(path.name, _READERS) or "")]


def name_sources(arguments: Sequence[Sequence[Shard]]) -> None:
    """Names the sources of files after folders, since the shards in one are of one source.

    A file that is alone in its argument and in its folder keeps its own name, unless another one
    has that, too. Folders of the same name are named with those that they are in: `arxiv/train` and
    `github/train`. `arguments` are the shards of each.
    """
    own = {}
    for shard in itertools.chain.from_iterable(arguments):
        # Saved datasets and the built-in text have names already.
        if isinstance(shard, FileShard) and shard.source == _own_name(shard.path):
            own[shard.path] = shard.source
    folders = {path: _folder_of(path) for path in own}
    in_folder, of_name = Counter(folders.values()), Counter(own.values())
    depth = 1
    while len({_last(folder, depth) for folder in in_folder}) < len(in_folder):
        depth += 1
    for argument in arguments:
        for shard in argument:
            if not isinstance(shard, FileShard) or shard.path not in own:
                continue
            folder = folders[shard.path]
            if len(argument) > 1 or in_folder[folder] > 1 or of_name[shard.source] > 1:
                shard.source = _last(folder, depth) or shard.source


def _folder_of(path: AnyPath) -> str:
    """The folder of a file, without a password."""
    if isinstance(path, RemotePath):
        return redacted(path.parent.url).rstrip("/")
    return path.parent.absolute().as_posix()


def _last(folder: str, depth: int) -> str:
    """The last parts of a folder's path."""
    return "/".join(folder.split("/")[-depth:])


_STATE, _INFO, _SPLITS = "state.json", "dataset_info.json", "dataset_dict.json"
_NOT_SAVED, _AGAIN = "not in the form that save_to_disk writes", "save the data set again"


def _saved_files(name: str, path: AnyPath, names: list[str], split: str) -> list[AnyPath] | None:
    """The Arrow files, in order, of a folder (its files are `names`) that `Dataset.save_to_disk` or
    `DatasetDict.save_to_disk` wrote.

    None for another folder. Raises UserError for a split that it lacks, and for a description that
    is damaged.
    """
    if _SPLITS in names:
        splits = _described(path / _SPLITS, "splits", str)
        if split not in splits:
            problem = f"no split {split}" if split else "several splits"
            remedy = f"choose {' or '.join(f'{name}:{known}' for known in splits)}"
            raise UserError(problem, where=name, remedy=remedy)
        path = path / split
    elif not {_STATE, _INFO} <= set(names):
        return None
    names = [str(file.get("filename")) for file in _described(path / _STATE, "_data_files", dict)]
    if not names or any("/" in name or not name.endswith(".arrow") for name in names):
        raise UserError(_NOT_SAVED, where=path / _STATE, remedy=_AGAIN)
    return [path / name for name in names]


def _described(path: AnyPath, name: str, kind: type) -> list[Any]:
    """A list in a JSON file."""
    try:
        content = read_file(path) if isinstance(path, Path) else path.read_bytes()
        items = parse_json(content)[name]
    except (ValueError, LookupError, TypeError):
        items = None
    if not isinstance(items, list) or not all(isinstance(item, kind) for item in items):
        raise UserError(_NOT_SAVED, where=path, remedy=_AGAIN)
    return items
