"""Streams the documents of a corpus: local files, datasets on the hub, or the built-in demo text.

The user's arguments become a list of shards whose order depends only on the arguments and file names; a stream started at any
position yields exactly the documents that a complete stream yields from there on.
"""

from __future__ import annotations

import difflib
import glob
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from recallkit.errors import UserError
from recallkit.registry import may_be_hub_id
from recallkit.text.demo_text import DemoShard
from recallkit.text.fields import FieldError, FieldFinder
from recallkit.text.hub import HubShard
from recallkit.text.readers import COMPRESSION, JsonLinesShard, ParquetShard, TextShard, suffix_of
from recallkit.text.records import Document, Position, StreamReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from recallkit.text.readers import Shard

Answer = TypeVar("Answer")

SUFFIXES = (*COMPRESSION, ".parquet", ".txt")
_MAX_SKIPPED_LISTED = 5
_START = Position()
_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w-][\w.-]*")


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
    """How records are read: dotted paths of text and source (None: default names); whether bad records are skipped."""

    text_field: str | None = None
    source_field: str | None = None
    skip_bad: bool = False


class Corpus:
    """Shards in stream order. `report` describes the latest stream: reset when it begins, complete when it ends."""

    def __init__(self, shards: Sequence[Shard], *, skip_bad: bool = False) -> None:
        self.shards = list(shards)
        self.report = StreamReport()
        self._skip_bad = skip_bad

    def digests(self) -> list[str]:
        """The digest of each shard, in stream order. Raises UserError if one cannot be read."""
        return [self.digest(number) for number in range(len(self.shards))]

    def digest(self, number: int) -> str:
        """The digest of a shard. Raises UserError if it cannot be read."""
        shard = self.shards[number]
        return _asked(shard, shard.digest)

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
            yield Document(text, source or default_source, document_id or f"{name}:{record}", Position(index, record))


def sizes_of(shards: Sequence[Shard]) -> list[int | None]:
    """Bytes of each shard on disk; None if unknown. Raises UserError for a shard that no longer exists."""
    return [_asked(shard, shard.size) for shard in shards]


def _asked(shard: Shard, question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    except OSError as error:
        raise UserError(f"cannot be read ({error.strerror})", where=shard.name, remedy="check that it is still there") from error


def open_corpus(arguments: Sequence[str], options: CorpusOptions = CorpusOptions(), *, default_split: str = "train") -> Corpus:
    """The corpus named by the arguments: presets and hub ids (`NAME[:SPLIT]`), files, folders, globs.

    A preset takes precedence over a file (`./pile` is the file), a file over a hub id. `default_split` is read if a
    preset or hub id names none. Nothing is read yet; raises UserError for sources that are missing, empty or of an
    unknown suffix.
    """
    if not arguments:
        raise UserError("no source was given", remedy="name a preset, hub id, file, folder or glob; `recallkit sources` lists them")
    finder = FieldFinder(options.text_field, options.source_field)
    shards = [shard for argument in arguments for shard in _shards_of(argument, finder, default_split)]
    return Corpus(shards, skip_bad=options.skip_bad)


def describe_sources() -> list[tuple[str, str]]:
    """What a source can be: name and one line each."""
    return [
        (
            "demo",
            "text of this Python installation: library, language reference, READMEs (demo:train, demo:validation, its demo:sample)",
        ),
        *((name, f"{preset.description}; {', '.join(f'{name}:{split}' for split in preset.splits)}") for name, preset in PRESETS.items()),
        ("OWNER/NAME[:SPLIT]", "any dataset on the hub with a text field, streamed"),
        ("FILE, FOLDER, GLOB", f"local files: {' '.join(SUFFIXES)}"),
    ]


def _shards_of(argument: str, finder: FieldFinder, default_split: str) -> list[Shard]:
    if not argument:
        raise UserError("an empty source name", remedy="is a shell variable unset?")
    name, _, split = argument.partition(":")
    split = split or default_split
    if name == "demo":
        return [DemoShard(split)]
    if name in PRESETS:
        return [_preset_shard(name, split, finder)]
    path = _expanded(argument)
    if os.path.lexists(path):
        return _unique(_found_in(argument, path, finder))
    if glob.has_magic(argument):
        return _unique(_matching(argument, finder))
    if _HUB_ID.fullmatch(name) and suffix_of(name, SUFFIXES) is None and may_be_hub_id(name):
        return [HubShard(f"{name}:{split}", name, split, name.split("/")[1], finder)]
    near = difflib.get_close_matches(name, ["demo", *PRESETS], n=1)
    remedy = f"did you mean {near[0]}?" if near else "check the path; `recallkit sources` lists what a source can be"
    raise UserError("no such file, folder or preset", where=argument, remedy=remedy)


def _expanded(argument: str) -> Path:
    """The path with a leading ~ expanded, if there is such a user."""
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        return Path(argument)


def _preset_shard(name: str, split: str, finder: FieldFinder) -> Shard:
    preset = PRESETS[name]
    if split not in preset.splits:
        remedy = f"choose {' or '.join(f'{name}:{known}' for known in preset.splits)}"
        raise UserError(f"no such split: {split}", where=name, remedy=remedy)
    return HubShard(f"{name}:{split}", preset.repo, split, name, finder, preset.revision)


class _Found(NamedTuple):
    path: Path
    shard: Shard


def _unique(found: list[_Found]) -> list[Shard]:
    """The shards of one argument, each file once, even if links or a glob name it again."""
    shards: dict[str, Shard] = {}
    for path, shard in found:
        shards.setdefault(os.path.realpath(path), shard)
    return list(shards.values())


def _matching(argument: str, finder: FieldFinder) -> list[_Found]:
    """The matches of a glob, sorted by name, as if the shell had expanded it."""
    matches = sorted(glob.glob(str(_expanded(argument)), recursive=True))  # noqa: PTH207 (Path.glob takes no absolute pattern)
    if not matches:
        raise UserError("matches no file", where=argument, remedy="check the pattern, and quote it to keep the shell from it")
    return [found for match in matches for found in _found_in(match, Path(match), finder, is_one_of_many=True)]


def _found_in(name: str, path: Path, finder: FieldFinder, *, is_one_of_many: bool = False) -> list[_Found]:
    """A file, or the files in a folder and its subfolders, sorted by relative path, without hidden files and other suffixes."""
    if not path.is_dir():
        return [_Found(path, _file_shard(name, path, finder, is_one_of_many=is_one_of_many))]
    below = []
    for folder, subfolders, files in os.walk(path):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        shards = (file for file in files if not file.startswith(".") and suffix_of(file, SUFFIXES))
        below += [Path(folder, file).relative_to(path).as_posix() for file in shards]
    if not below and not is_one_of_many:
        raise UserError(f"no {', '.join(SUFFIXES)} file in this folder", where=name, remedy="name the folder that contains the shards")
    return [
        _Found(path / file, _file_shard(f"{name.rstrip('/')}/{file}", path / file, finder, is_one_of_many=True)) for file in sorted(below)
    ]


def _file_shard(name: str, path: Path, finder: FieldFinder, *, is_one_of_many: bool) -> Shard:
    suffix = suffix_of(path.name, SUFFIXES)
    if not str(path).isprintable():  # nor are the surrogates in names that are not UTF-8
        raise UserError("a name with characters that are not text", where=name, remedy="rename it")
    if not path.exists():
        raise UserError("no such file", where=name, remedy="it is a broken link: fix or remove it")
    if suffix is None or not path.is_file():
        raise UserError("not a supported kind of file", where=name, remedy=f"give {', '.join(SUFFIXES)}")
    if not os.access(path, os.R_OK):
        raise UserError("may not be read", where=name, remedy="check its permissions")
    source = path.name[: -len(suffix)]
    if suffix in COMPRESSION:
        return JsonLinesShard(name, path, source, finder, COMPRESSION[suffix])
    if suffix == ".parquet":
        return ParquetShard(name, path, source, finder)
    # In a folder of text files each file would be a source of its own: the folder's name is more informative.
    return TextShard(name, path, path.absolute().parent.name if is_one_of_many else source, FieldFinder())
