"""Streams the documents of a corpus: files here or elsewhere, datasets on the hub, or the built-in demo text.

The user's arguments become a list of shards whose order depends only on the arguments and file names; a stream started at any
position yields exactly the documents that a complete stream yields from there on.
"""

from __future__ import annotations

import difflib
import glob
import math
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from recallkit.errors import UserError
from recallkit.registry import may_be_hub_id
from recallkit.text.demo_text import DemoShard
from recallkit.text.fields import FieldError, FieldFinder
from recallkit.text.formats import KINDS_OF_FILES, SUFFIXES, Reading, file_shard, shards_among, split_dtype
from recallkit.text.given import GivenShard
from recallkit.text.hub import HubShard
from recallkit.text.readers import suffix_of
from recallkit.text.records import Document, Position, StreamReport
from recallkit.text.remote import RemotePath, is_url
from recallkit.text.saved_datasets import has_splits, is_saved, saved_files

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from recallkit.text.given import Texts
    from recallkit.text.readers import Shard
    from recallkit.text.records import Vocabulary
    from recallkit.text.remote import AnyPath

Answer = TypeVar("Answer")

_MAX_SKIPPED_LISTED = 5
_WORDS_OF_A_NAME = 6
"""What has more words is hardly a file."""
_START = Position()
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")
_OLD_HUB_ID = re.compile(r"[\w-][\w.-]*")


class Preset(NamedTuple):
    """A dataset on the hub under a short name."""

    repo: str
    revision: str | None
    splits: tuple[str, ...]
    description: str


_ONE, _ALL = ("train",), ("train", "validation", "test")
# `datasets` no longer runs scripts: for datasets that have one, the hub's own conversion to Parquet is read.
PRESETS = {
    "pile": Preset("monology/pile-uncopyrighted", None, _ALL, "the Pile less its copyrighted sets (EleutherAI/pile is gone)"),
    "redpajama": Preset("togethercomputer/RedPajama-Data-1T-Sample", "refs/convert/parquet", _ONE, "the RedPajama 1T sample of 1B tokens"),
    "slimpajama": Preset("cerebras/SlimPajama-627B", None, _ALL, "SlimPajama: RedPajama cleaned and deduplicated, 627B tokens"),
}


@dataclass(frozen=True, slots=True)
class CorpusOptions:
    """How records are read: dotted paths of text and source (None: default names); whether bad records are skipped.

    `vocabulary` is the one of token ids, None if the user named no tokenizer: then ids are refused.
    """

    text_field: str | None = None
    source_field: str | None = None
    skip_bad: bool = False
    vocabulary: Vocabulary | None = None

    def reading(self) -> Reading:
        """The same for files."""
        return Reading(FieldFinder(self.text_field, self.source_field), self.vocabulary)


class Corpus:
    """Shards in stream order. `report` describes the latest stream: reset when it begins, complete when it ends."""

    def __init__(self, shards: Sequence[Shard], *, skip_bad: bool = False, vocabulary: Vocabulary | None = None) -> None:
        self.shards = list(shards)
        self.report = StreamReport()
        self._skip_bad = skip_bad
        self._vocabulary = vocabulary
        self._sizes: dict[int, int | None] = {}

    def of_shards(self, shards: Sequence[Shard]) -> Corpus:
        """Other shards, read in the same way."""
        return Corpus(shards, skip_bad=self._skip_bad, vocabulary=self._vocabulary)

    def digests(self) -> list[str]:
        """The digest of each shard, in stream order. Raises UserError if one cannot be read."""
        return [self.digest(number) for number in range(len(self.shards))]

    def digest(self, number: int) -> str:
        """The digest of a shard. Raises UserError if it cannot be read."""
        shard = self.shards[number]
        return _asked(shard, shard.digest)

    def num_bytes(self, first: int, stop: float) -> int | None:
        """Bytes on disk from shard `first` up to `stop`, which may be within a shard; None where a size is unknown."""
        total = 0.0
        for number in range(first, math.ceil(stop)):
            size = self._size(number)
            if size is None:
                return None
            total += size * min(1.0, stop - number)
        return round(total)

    def _size(self, number: int) -> int | None:
        if number not in self._sizes:
            [self._sizes[number]] = sizes_of([self.shards[number]])
        return self._sizes[number]

    def documents(self, start: Position = _START, stop: int | None = None) -> Iterator[Document]:
        """The documents from `start` on, up to shard `stop`; shards before and from there on are not opened.

        `position.record` counts a shard's records: lines of a JSON Lines file from 0 (including bad and blank ones),
        rows, documents of the demo text. A text may be empty. Raises UserError for a damaged or empty shard and,
        unless bad records are skipped, for a bad record; nothing is yielded after it.
        """
        self.report.num_documents = self.report.num_skipped = 0
        self.report.first_skipped.clear()
        for index in range(start.shard, len(self.shards) if stop is None else stop):
            yield from self._documents_of(index, start.record if index == start.shard else 0)

    def _documents_of(self, index: int, first: int) -> Iterator[Document]:
        shard, report = self.shards[index], self.report
        name, default_source, find = shard.name, shard.source, shard.finder.find

        def on_bad(record: int, problem: str, remedy: str) -> None:
            if not self._skip_bad:
                raise UserError(problem, where=shard.place(record), remedy=f"{remedy}, or leave bad records out with --skip-bad")
            report.num_skipped += 1
            if len(report.first_skipped) < _MAX_SKIPPED_LISTED:
                report.first_skipped.append(f"{shard.place(record)}: {problem}")

        for record, fields in shard.records(first, on_bad):
            try:
                text, source, document_id = find(fields)
            except FieldError as error:
                on_bad(record, str(error), error.remedy)
                continue
            report.num_documents += 1
            ids = None if isinstance(text, str) else _document_ids(text, self._vocabulary, shard.place(record))
            text = text if isinstance(text, str) else ""
            place = Position(index, record)
            yield Document(text, source or default_source, document_id or f"{name}:{record}", place, ids, shard.meter.share)


def _document_ids(ids: np.ndarray, vocabulary: Vocabulary | None, where: str) -> np.ndarray:
    """The ids of a document without the end token that may be its last one. Raises UserError for ids of another vocabulary."""
    if vocabulary is None:
        raise UserError("token ids, and no tokenizer is named", where=where, remedy="name theirs with --tokenizer")
    if not len(ids):
        return ids
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocabulary.size:
        number = int(((ids < 0) | (ids >= vocabulary.size)).argmax())
        problem = f"number {number:,} of its ids (from 0) is {int(ids[number]):,}, none of the {vocabulary.size:,} of {vocabulary.name}"
        raise UserError(problem, where=where, remedy="name their own --tokenizer, and the type of a .bin file as FILE.bin:uint32")
    return ids[:-1] if int(ids[-1]) == vocabulary.end_token_id and not vocabulary.end_is_text else ids


def sizes_of(shards: Sequence[Shard]) -> list[int | None]:
    """Bytes of each shard on disk; None if unknown. Raises UserError for a shard that no longer exists."""
    return [_asked(shard, shard.size) for shard in shards]


def _asked(shard: Shard, question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror or error})", where=shard.name, remedy="check that it is still there") from error


def open_corpus(arguments: Sequence[str], options: CorpusOptions = CorpusOptions(), *, default_split: str = "train") -> Corpus:
    """The corpus named by the arguments: presets and hub ids (`NAME[:SPLIT]`, `NAME:CONFIG:SPLIT`), files, folders, globs, URLs.

    A preset takes precedence over a file (`./pile` is the file), a file over a hub id. `default_split` is read if a
    preset, hub id or folder with several splits names none. Nothing is read yet; raises UserError for sources that are missing,
    empty or of an unknown suffix.
    """
    if not arguments:
        raise UserError("no source was given", remedy="name a preset, hub id, file, folder or glob; `recallkit sources` lists them")
    shards = [shard for argument in arguments for shard in _shards_of(argument, options.reading(), default_split)]
    return Corpus(shards, skip_bad=options.skip_bad, vocabulary=options.vocabulary)


def open_texts(texts: Texts, options: CorpusOptions = CorpusOptions()) -> Corpus:
    """The corpus of texts that a program gives. Raises UsageError for what is no collection of texts."""
    return Corpus([GivenShard(texts, options.reading().finder)], skip_bad=options.skip_bad, vocabulary=options.vocabulary)


def describe_sources() -> list[tuple[str, str]]:
    """What a source can be: name and one line each."""
    return [
        (
            "demo",
            "text of this Python installation: library, language reference, READMEs (demo:train, demo:validation, its demo:sample)",
        ),
        *((name, f"{preset.description}; {', '.join(f'{name}:{split}' for split in preset.splits)}") for name, preset in PRESETS.items()),
        ("OWNER/NAME[[:CONFIG]:SPLIT]", "any dataset on the hub with a text field, streamed (wikitext:wikitext-2-raw-v1:test, too)"),
        ("FILE, FOLDER, GLOB", f"local files: {KINDS_OF_FILES}"),
        ("FILE.bin:TYPE", "flat token ids of a type such as uint32, where it is not found; ids need --tokenizer"),
        ("FOLDER[:SPLIT]", "what save_to_disk of `datasets` wrote"),
        ("PROTOCOL://...", "the same files elsewhere, by fsspec: hf://, https://, and s3://, gs:// ... with s3fs, gcsfs ... installed"),
    ]


def _shards_of(argument: str, how: Reading, default_split: str) -> list[Shard]:
    if not argument:
        raise UserError("an empty source name", remedy="is a shell variable unset?")
    argument, dtype = split_dtype(argument)
    how = how._replace(dtype=dtype)
    if is_url(argument):
        return _shards_at(argument, how, default_split)
    name, _, rest = argument.partition(":")
    split = rest or default_split
    if name == "demo":
        return [DemoShard(split)]
    if name in PRESETS:
        return [_preset_shard(name, split, how)]
    path = _expanded(argument)
    if os.path.lexists(path):
        return _unique(_found_in(argument, path, how, default_split))
    if glob.has_magic(argument):
        return _unique(_matching(argument, how))
    if rest and has_splits(_expanded(name)):
        return _unique(_saved_in(name, _expanded(name), how, rest))
    if (shard := _hub_shard(name, rest, default_split, how)) is not None:
        return [shard]
    near = difflib.get_close_matches(name, ["demo", *PRESETS], n=1)
    remedy = f"did you mean {near[0]}?" if near else "check the path; `recallkit sources` lists what a source can be"
    if len(argument.split()) > _WORDS_OF_A_NAME:
        remedy = "in Python, texts themselves are given as texts="
    raise UserError("no such file, folder or preset", where=argument, remedy=remedy)


def _hub_shard(name: str, rest: str, default_split: str, how: Reading) -> Shard | None:
    """The dataset on the hub, if `name` can be one; `rest` is `SPLIT` or `CONFIG:SPLIT`. Ids without an owner need the latter."""
    first, colon, second = rest.partition(":")
    config, split = (first or None, second or default_split) if colon else (None, first or default_split)
    is_id = _HUB_ID.fullmatch(name) and suffix_of(name, SUFFIXES) is None and may_be_hub_id(name)
    if not is_id and not (config and _OLD_HUB_ID.fullmatch(name)):
        return None
    told = f"{name}:{split}" if config is None else f"{name}:{config}:{split}"
    return HubShard(told, name, split, name.rpartition("/")[2], how.finder, config=config)


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
    return HubShard(f"{name}:{split}", preset.repo, split, name, how.finder, preset.revision)


class _Found(NamedTuple):
    path: AnyPath
    shard: Shard


def _unique(found: list[_Found]) -> list[Shard]:
    """The shards of one argument, each file once, even if links or a glob name it again."""
    shards: dict[str, Shard] = {}
    for path, shard in found:
        shards.setdefault(str(path) if isinstance(path, RemotePath) else os.path.realpath(path), shard)
    return list(shards.values())


def _matching(argument: str, how: Reading) -> list[_Found]:
    """The matches of a glob, sorted by name, as if the shell had expanded it."""
    matches = sorted(glob.glob(str(_expanded(argument)), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    if not matches:
        raise _no_match(argument)
    return [found for match in matches for found in _found_in(match, Path(match), how, is_one_of_many=True)]


def _no_match(argument: str) -> UserError:
    return UserError("matches no file", where=argument, remedy="check the pattern, and quote it to keep the shell from it")


def _found_in(name: str, path: Path, how: Reading, split: str = "", *, is_one_of_many: bool = False) -> list[_Found]:
    """A file, or the files in a folder and its subfolders, sorted by relative path, without hidden files and other suffixes."""
    if not path.is_dir():
        return [_local_file(name, path, how, is_one_of_many=is_one_of_many)]
    if is_saved(path):
        return _saved_in(name, path, how, split)
    files = shards_among([file.relative_to(path).as_posix() for file in _files_below(path)])
    if not files and not is_one_of_many:
        raise _no_files(name)
    return [_local_file(f"{name.rstrip('/')}/{file}", path / file, how, is_one_of_many=True) for file in files]


def _files_below(path: Path) -> Iterator[Path]:
    for folder, subfolders, files in os.walk(path):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        yield from (Path(folder, file) for file in files)


def _no_files(name: str) -> UserError:
    return UserError("no file of text in this folder", where=name, remedy=f"name the folder that contains the shards: {KINDS_OF_FILES}")


def _saved_in(name: str, path: AnyPath, how: Reading, split: str) -> list[_Found]:
    """The Arrow files of a data set that `datasets` saved, in their order."""
    return [_Found(file, file_shard(str(file), file, how, None)) for file in saved_files(name, path, split)]


def _local_file(name: str, path: Path, how: Reading, *, is_one_of_many: bool) -> _Found:
    if not str(path).isprintable():  # nor are the surrogates in names that are not UTF-8
        raise UserError("a name with characters that are not text", where=name, remedy="rename it")
    if not path.exists():
        raise UserError("no such file", where=name, remedy="it is a broken link: fix or remove it")
    if not path.is_file():
        raise UserError("not a supported kind of file", where=name, remedy=f"give {KINDS_OF_FILES}")
    shard = file_shard(name, path, how, path.absolute().parent.name if is_one_of_many else None)
    if not os.access(path, os.R_OK):
        raise UserError("may not be read", where=name, remedy="check its permissions")
    return _Found(path, shard)


def _shards_at(argument: str, how: Reading, default_split: str) -> list[Shard]:
    """The files at a URL: a file, if it has a file's suffix, those that a pattern matches, or those in a folder."""
    path = RemotePath(argument)
    try:
        if path.is_pattern:
            if not (matches := path.matches()):
                raise _no_match(argument)
            return _unique([_Found(match, file_shard(match.url, match, how, _folder_of(match))) for match in matches])
        if suffix_of(path.name, SUFFIXES) is not None:
            path.info()
            return [file_shard(argument, path, how, None)]
        return _unique(_found_at(argument, path, how, default_split))
    except OSError as error:
        why = "no such file, or no answer" if isinstance(error, FileNotFoundError) else error
        raise UserError(f"cannot be read ({why})", where=argument, remedy="check the address, the network and your rights") from error


def _found_at(argument: str, path: RemotePath, how: Reading, default_split: str) -> list[_Found]:
    """The files in a folder elsewhere, which may be one that `datasets` saved, with `:SPLIT` after its name."""
    if is_saved(path):
        return _saved_in(argument, path, how, default_split)
    name, _, split = argument.rpartition(":")
    if "/" not in split and is_url(name) and has_splits(RemotePath(name)):
        return _saved_in(name, RemotePath(name), how, split)
    files = [path / file for file in shards_among(path.below())]
    if not files:
        raise _no_files(argument)
    return [_Found(file, file_shard(file.url, file, how, _folder_of(file))) for file in files]


def _folder_of(path: RemotePath) -> str:
    return RemotePath(path.url.rpartition("/")[0]).name
