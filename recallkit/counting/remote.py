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
from recallkit.storage import artifacts, given_files
from recallkit.storage.journal import Journal
from recallkit.text.places import RemotePath, is_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_CHUNK = 1 << 24
"""Bytes between two commits."""
_HUB, _KINDS = "hf://", ("datasets", "models", "spaces", "buckets")
_AGAIN = "run the same command again: it resumes from here"


def counts_here(given: File | None) -> Path | None:
    """The counts table that is given, as a file here: one at a URL is downloaded.

    Raises UserError as `downloaded_counts` does, and for an index.
    """
    if index_named(given):
        raise UserError(
            "an index only counts the bigrams of a given text",
            where="--counts",
            remedy="name it with `slice`, or give a table",
        )
    return downloaded_counts(given) if isinstance(given, str) and is_url(given) else path(given)


def downloaded_counts(url: str) -> Path:
    """The counts table at a URL as a file here; `hf://OWNER/NAME/FILE` is of a data set of the hub,
    `#ID` after it is the table's id.

    It is downloaded when it is first asked for, in the cache folder, and resumes where it was
    interrupted. Raises UserError for what is not there, ends early, or is not a counts table, or
    not the one of this id.
    """
    address, _, wanted = url.partition("#")
    shown = redacted(address)
    if address.startswith(_HUB) and address.removeprefix(_HUB).partition("/")[0] not in _KINDS:
        address = f"{_HUB}datasets/{address.removeprefix(_HUB)}"
    # A table of a known id may be signed again.
    identity = artifacts.digest_json([address.partition("?")[0] if wanted else address, wanted])
    target = config.home() / "counts" / f"{identity}.duckdb"
    if target.exists():
        return target
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # it logs each retry, then raises
    place = RemotePath(address)
    with _in_one_line(address, shown):
        size, digest = place.info().get("size"), place.digest()
    if size is None:
        raise UserError(
            "the server does not say how long it is",
            where=shown,
            remedy="download it, and name the file",
        )
    with Journal(target, {"url": identity, "digest": digest}, force=True, patient=True) as journal:
        if target.exists():  # another process made it meanwhile
            journal.finish()
            return target
        part = journal.part(0)
        _download(place, size, journal, part, shown)
        try:
            found = open_counts(part).meta["id"]
        except UserError as error:
            journal.finish()
            raise UserError(
                f"not a complete counts table ({error.problem})",
                where=shown,
                remedy="ask its owner",
            ) from error
        if wanted not in ("", found):
            journal.finish()
            raise UserError(
                f"its id is {found}, not {wanted}",
                where=shown,
                remedy="the table was changed, or the id belongs to another one",
            )
        with artifacts.replacing(target) as temporary:
            part.rename(temporary)
        journal.finish()
    return target


def _download(place: RemotePath, size: int, journal: Journal, part: Path, shown: str) -> None:
    """The bytes of `place` that `part` does not have yet, each chunk committed."""
    done = min(journal.state.get("bytes", 0), part.stat().st_size) if journal.resumed and part.exists() else 0
    given_files.check_room(journal.folder, size - done, shown)
    with _in_one_line(place.url, shown):
        opened = place.open()
    with (
        opened as remote,
        progress("downloading counts", total=size, unit="bytes") as show,
        part.open("r+b" if done else "wb") as file,
    ):
        if getattr(remote, "size", size) != size:
            raise UserError("it changed as its download began", where=shown, remedy=_AGAIN)
        remote.seek(done)
        journal.note_resumed(done, "bytes")
        file.truncate(done)
        file.seek(done)
        while done < size:
            show(done)
            with _in_one_line(place.url, shown):
                chunk = remote.read(min(_CHUNK, size - done))
            if not chunk:
                raise UserError(
                    f"it ends after {done:,} of {size:,} bytes",
                    where=shown,
                    remedy=_AGAIN,
                )
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
        raise UserError(
            problem,
            where=shown,
            remedy="check the URL; log in with `hf auth login`",
        ) from error
    except UserError as error:
        if error.where != url:
            raise
        raise UserError(error.problem, where=shown, remedy=error.remedy) from error
    except (OSError, ValueError) as error:
        if lacks_resources(error):
            raise
        said = next(iter(str(error).splitlines()), "").replace(url, shown) or type(error).__name__
        raise UserError(f"it cannot be read ({said})", where=shown, remedy=_AGAIN) from error
