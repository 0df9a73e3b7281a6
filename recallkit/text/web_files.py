"""The files of web servers (http, https) as a file system of fsspec, read by `web_server`.

A file is read in blocks, a few of which are in memory. A server that gives no parts of files sends
all of one, once, to a temporary file in the cache folder.
"""

from __future__ import annotations

import contextlib
import html
import os
import re
import tempfile
from typing import Any, ClassVar
from urllib.parse import urljoin

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile

from recallkit import config, events
from recallkit.errors import UserError, redacted
from recallkit.storage import given_files, hashing
from recallkit.text.web_server import DOWNLOAD, Facts, NoPartsError, WebFile

BLOCK = 1 << 22
_NUM_BLOCKS = 8
"""Blocks in memory of a file: readers of several columns jump between them."""
_MOST_LISTED = 1 << 24
_MOST_FOLDERS = 1000
"""Bytes of the page of a folder, and folders of which files are looked for."""
_LINK = re.compile(rb"""href\s*=\s*["']([^"'?#]{1,4000})["']""", re.IGNORECASE)


class WebFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files by their URLs, and the folders whose pages list them.

    Raises OSError or UserError for what cannot be read.
    """

    cachable = False
    protocol: ClassVar[tuple[str, ...]] = ("http", "https")

    def __init__(self) -> None:
        super().__init__()
        self._num_folders = 0

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return path

    def unstrip_protocol(self, name: str) -> str:
        """The URL, which is how files are named here."""
        return name

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        """Name and size, and `ETag`: the server's tag, or its date with a digest of the URL."""
        file = WebFile(path)
        facts = file.facts()
        dated = f"{facts.modified} {hashing.digest_json(file.url)}" if facts.modified else ""
        return {"name": path, "size": facts.size, "type": "file", "ETag": facts.tag or dated}

    def cat_file(
        self,
        path: str,
        start: int | None = None,
        end: int | None = None,
        **_: Any,
    ) -> bytes:
        """Some of its bytes, or all. Raises UserError if the server gives no parts."""
        file = WebFile(path)
        facts = file.facts()
        stop = facts.size if end is None else min(end, facts.size)
        try:
            return file.part(facts, range(start or 0, stop))
        except NoPartsError as error:
            problem = "the server gives neither tag, date nor parts of it"
            problem = f"{problem}, so a change would go unnoticed"
            raise UserError(problem, where=redacted(path), remedy=DOWNLOAD) from error

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What the page of a folder links to in this folder; nothing if that is no page."""
        self._num_folders += 1
        if self._num_folders > _MOST_FOLDERS:
            problem = f"more than {_MOST_FOLDERS:,} folders"
            raise UserError(problem, where=redacted(path), remedy="name one of them")
        folder = f"{path.rstrip('/')}/"
        try:
            page = WebFile(folder).beginning(_MOST_LISTED)
        except FileNotFoundError:
            raise
        except OSError as error:  # which fsspec would take for an empty folder
            problem = f"cannot be read ({error})"
            raise UserError(problem, where=redacted(path), remedy="name each file") from error
        is_page = page.lstrip().startswith(b"<") and len(page) < _MOST_LISTED
        links = set()
        for link in _LINK.findall(page) if is_page else ():
            links.add(urljoin(folder, html.unescape(link.decode(errors="replace"))))
        names = sorted(link for link in links if _is_in(folder, link))
        if not detail:
            return names
        kinds = {True: "directory", False: "file"}
        return [{"name": name, "size": None, "type": kinds[name.endswith("/")]} for name in names]

    def _open(self, path: str, mode: str = "rb", **_: Any) -> OpenWebFile:
        return OpenWebFile(self, path)


def _is_in(folder: str, link: str) -> bool:
    """Whether a link leads to a file or a folder that is in this folder itself."""
    return re.fullmatch(r"[^/]+/?", link.removeprefix(folder)) is not None


class OpenWebFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of a web server, open for reading."""

    def __init__(self, files: WebFiles, url: str) -> None:
        self._file = WebFile(url)
        self._facts = self._file.facts()
        super().__init__(
            files,
            url,
            block_size=BLOCK,
            cache_type="blockcache",
            cache_options={"maxblocks": _NUM_BLOCKS},
            size=self._facts.size,
        )

    def read(self, length: int | None = -1) -> bytes:
        """So many bytes, or all that follow. Raises OSError for far too many."""
        left = self.size - self.loc
        given_files.check_part(left if length is None or length < 0 else min(length, left))
        content: bytes = super().read(length)
        return content

    def _fetch_range(self, start: int, end: int) -> bytes:
        stop, key = min(end, self.size), (self._file.url, self._facts)
        if key not in _copies:
            try:
                return self._file.part(self._facts, range(start, stop))
            except NoPartsError:
                _copy(*key, self._file)
        return os.pread(_copies[key].fileno(), stop - start, start)


_copies: dict[tuple[str, Facts], Any] = {}
"""The latest temporary copy: each part of an archive is read from it."""


def _copy(url: str, facts: Facts, file: WebFile) -> None:
    """Makes a temporary copy of a file, which is removed with the process."""
    folder = config.home()
    folder.mkdir(parents=True, exist_ok=True)
    given_files.check_room(folder, facts.size, file.where)
    events.note(
        f"{file.where}: the server gives no parts of it, so it is copied to a temporary file",
    )
    with contextlib.ExitStack() as at_failure:
        copy = at_failure.enter_context(tempfile.TemporaryFile(dir=folder))
        file.copy(facts, copy)
        copy.flush()
        at_failure.pop_all()
    while _copies:
        _copies.popitem()[1].close()
    _copies[url, facts] = copy
