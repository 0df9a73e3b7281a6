"""Counts tables elsewhere: `--counts https://...` or `hf://OWNER/NAME/FILE`, downloaded once,
checked and kept in the cache folder.

What is checked is the table's own `id`, a digest of everything that was counted, which every reader
computes again. So a truncated or changed file is refused, and a URL that ends in `#ID` gives the
table of that id or none.
"""

from __future__ import annotations

import contextlib
import logging
from typing import TYPE_CHECKING

from recallkit import config
from recallkit.counting.infini_gram import index_named
from recallkit.counting.table import open_counts
from recallkit.declarations import File, path
from recallkit.display.progress import progress
from recallkit.errors import UserError, lacks_resources, redacted
from recallkit.storage import given_files, hashing, whole_files
from recallkit.storage.journal import Journal
from recallkit.text.places import RemotePath, is_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK = 1 << 24
"""Bytes between two commits."""
_HUB, _KINDS = "hf://", ("datasets", "models", "spaces", "buckets")
_AGAIN = "run the same command again: it resumes from here"


def counts_here(counts: File | None) -> Path | None:
    """The counts table that a user names, as a file here: one at a URL is downloaded.

    Raises UserError as `downloaded_counts` does, and for an index.
    """
    if index_named(counts):
        problem = "an index only counts the bigrams of a given text"
        remedy = "name it with `slice`, or give a table"
        raise UserError(problem, where="--counts", remedy=remedy)
    if isinstance(counts, str) and is_url(counts):
        return downloaded_counts(counts)
    return path(counts)


def downloaded_counts(url: str) -> Path:
    """The counts table at a URL as a file in the cache folder, downloaded when it is first needed.

    `hf://OWNER/NAME/FILE` is of a data set of the hub, `#ID` after it is the table's id. Raises
    UserError for what is not there, ends early, is not a counts table, or not the one of this id.
    """
    address, _, wanted = url.partition("#")
    shown = redacted(address)
    if address.startswith(_HUB) and address.removeprefix(_HUB).partition("/")[0] not in _KINDS:
        address = f"{_HUB}datasets/{address.removeprefix(_HUB)}"
    # A table of a known id may be signed again.
    identity = hashing.digest_json([address.partition("?")[0] if wanted else address, wanted])
    target = config.home() / "counts" / f"{identity}.duckdb"
    if target.exists():
        return target
    # The hub's library logs each retry before it raises.
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
    place = RemotePath(address)
    with _in_one_line(address, shown):
        size, digest = place.info().get("size"), place.digest()
    if size is None:
        problem = "the server does not say how long it is"
        raise UserError(problem, where=shown, remedy="download it, and name the file")
    key = {"url": identity, "digest": digest}
    with Journal(target, key, force=True, patient=True) as journal:
        if not target.exists():  # no other process made it meanwhile
            _download(place, size, journal, shown)
            try:
                _check_table(journal.part(0), wanted, shown)
            except UserError:
                journal.finish()
                raise
            with whole_files.replacing(target) as temporary:
                journal.part(0).rename(temporary)
        journal.finish()
    return target


def _check_table(table: Path, wanted: str, shown: str) -> None:
    """Raises UserError for what is not a table, or not the one with the id that is `wanted`."""
    try:
        own = open_counts(table).meta["id"]
    except UserError as error:
        problem = f"not a complete counts table ({error.problem})"
        raise UserError(problem, where=shown, remedy="ask its owner") from error
    if wanted not in ("", own):
        remedy = "the table was changed, or the id belongs to another one"
        raise UserError(f"its id is {own}, not {wanted}", where=shown, remedy=remedy)


def _download(place: RemotePath, size: int, journal: Journal, shown: str) -> None:
    """Writes the bytes of a file at a place that the journal's part does not have yet."""
    part, done = journal.part(0), 0
    if journal.resumed and part.exists():
        done = min(journal.state.get("bytes", 0), part.stat().st_size)
    given_files.check_room(journal.folder, size - done, shown)
    with _in_one_line(place.url, shown):
        opened = place.open()
    if getattr(opened, "size", size) != size:
        raise UserError("it changed as its download began", where=shown, remedy=_AGAIN)
    showing = progress("downloading counts", total=size, unit="bytes")
    with opened as remote, showing as show, part.open("r+b" if done else "wb") as file:
        journal.note_resumed(done, "bytes")
        file.truncate(done)
        file.seek(done)
        remote.seek(done)
        while done < size:
            show(done)
            with _in_one_line(place.url, shown):
                chunk = remote.read(min(_CHUNK, size - done))
            if not chunk:
                problem = f"it ends after {done:,} of {size:,} bytes"
                raise UserError(problem, where=shown, remedy=_AGAIN)
            done += file.write(chunk)
            file.flush()
            journal.commit({"bytes": done})


@contextlib.contextmanager
def _in_one_line(url: str, shown: str) -> Iterator[None]:
    """A block that asks a server: what it answers is one line, without what may be a key in the
    URL."""
    try:
        yield
    except FileNotFoundError as error:
        problem = "no such file there, or it is private, or no server answers"
        remedy = "check the URL; log in with `hf auth login`"
        raise UserError(problem, where=shown, remedy=remedy) from error
    except UserError as error:
        if error.where != url:
            raise
        raise UserError(error.problem, where=shown, remedy=error.remedy) from error
    except (OSError, ValueError) as error:
        if lacks_resources(error):
            raise
        said = next(iter(str(error).splitlines()), "").replace(url, shown) or type(error).__name__
        raise UserError(f"it cannot be read ({said})", where=shown, remedy=_AGAIN) from error
