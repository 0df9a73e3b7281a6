"""The files of web servers (http, https) as a file system of fsspec, read by `web_server`.

A file is streamed, in one answer, until its reader seeks; then it is read in blocks, a few of which are in memory. A server
that gives no parts of files sends all of one, once, to a temporary file in the cache folder.
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import sys
import tempfile
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urljoin

from fsspec import AbstractFileSystem

from recallkit import config, events
from recallkit.errors import UserError, redacted
from recallkit.storage import artifacts, given_files
from recallkit.text.web_server import DOWNLOAD, NoRangesError, WebError, WebFile

if TYPE_CHECKING:
    from recallkit.text.web_server import Body

BLOCK = 1 << 22
_NUM_BLOCKS = 8
"""Blocks in memory of a file in which a reader seeks: readers of several columns jump between them."""
_MOST_LISTED = 1 << 24
_MOST_FOLDERS = 1000
"""Bytes of the page of a folder, and folders of which files are looked for."""
_LINK = re.compile(rb"""href\s*=\s*["']([^"'?#]{1,4000})["']""", re.IGNORECASE)

_copies: dict[str, Any] = {}
"""The latest temporary copy, by the digest of its address and facts: each part of an archive is read from it."""


class WebFiles(AbstractFileSystem):  # type: ignore[misc]
    """Files by their URLs, and the folders whose pages list them. Raises OSError or UserError for what cannot be read."""

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
        dated = f"{facts.modified} {artifacts.digest_json(file.url)}" if facts.modified else ""
        return {"name": path, "size": facts.size, "type": "file", "ETag": facts.tag or dated}

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        """Some of its bytes, or all. Raises UserError if the server gives no parts."""
        file = WebFile(path)
        try:
            return b"".join(file.pieces(file.facts(), start or 0, end))
        except NoRangesError as error:
            error.body.close()
            problem = "the server gives neither tag, date nor parts of it, so a change would go unnoticed"
            raise UserError(problem, where=redacted(path), remedy=DOWNLOAD) from error

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Any]:
        """What the page of a folder links to in this folder; nothing if that is no page."""
        self._num_folders += 1
        if self._num_folders > _MOST_FOLDERS:
            raise UserError(f"more than {_MOST_FOLDERS:,} folders", where=redacted(path), remedy="name one of them")
        folder = f"{path.rstrip('/')}/"
        try:
            page = _page(WebFile(folder))
        except FileNotFoundError:
            raise
        except OSError as error:  # which fsspec would take for an empty folder
            raise UserError(f"cannot be read ({error})", where=redacted(path), remedy="name each file") from error
        names = (html.unescape(link.decode(errors="replace")) for link in _LINK.findall(page))
        links = {urljoin(folder, name) for name in names}
        inside = sorted(link for link in links if re.fullmatch(r"[^/]+/?", link.removeprefix(folder)))
        kinds = [("directory" if link.endswith("/") else "file") for link in inside]
        return [{"name": link, "size": None, "type": kind} for link, kind in zip(inside, kinds, strict=True)] if detail else inside

    def _open(self, path: str, mode: str = "rb", **_: Any) -> OpenWebFile:
        return OpenWebFile(WebFile(path))


def _page(file: WebFile) -> bytes:
    """A page in HTML; nothing for another file, or one that is too long."""
    page = b""
    with contextlib.closing(file.pieces(file.facts())) as pieces:
        for piece in pieces:
            page += piece
            if len(page) > _MOST_LISTED or not page.lstrip().startswith(b"<"):
                return b""
    return page


class OpenWebFile(io.BufferedIOBase):
    """A file of a web server, open for reading. `size`: its bytes, None where the server does not say."""

    def __init__(self, file: WebFile) -> None:
        self._file, self._facts = file, file.facts()
        self.size = self._facts.size
        self._key = artifacts.digest_json([file.url, *self._facts])
        self._at = 0
        self._window, self._window_start = b"", 0
        self._stream: Any = None
        self._blocks: dict[int, bytes] | None = None

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The next byte's number."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Goes to a byte, without reading."""
        if whence == io.SEEK_END and self.size is None:
            raise WebError("the server does not say how long it is")
        self._at = max(0, offset + (0, self._at, self.size or 0)[whence])
        return self._at

    def read(self, size: int | None = -1, /) -> bytes:
        """So many bytes, or all that follow; fewer at the end alone."""
        wanted = sys.maxsize if size is None or size < 0 else size
        given_files.check_part(min(wanted, (self.size or 0) - self._at))
        parts, length = [], 0
        while length < wanted and (part := self._some(wanted - length)):
            parts.append(part)
            length += len(part)
            self._at += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _some(self, most: int) -> bytes:
        """Bytes from here on: at least one unless the file ends here."""
        begin = self._at - self._window_start
        if not 0 <= begin < len(self._window):
            self._load()
            begin = self._at - self._window_start
        return self._window[begin : begin + most]

    def _load(self) -> None:
        """Makes the window begin here, or with the block that has this byte."""
        end = self._window_start + len(self._window)
        is_new = self._stream is None and self._blocks is None
        if self.size is not None and self._at >= self.size:
            self._window, self._window_start = b"", self._at
        elif self._key in _copies or not (is_new or (self._blocks is None and self._at == end)):
            self._window_start = self._at // BLOCK * BLOCK
            self._window = self._block(self._window_start)
        else:
            self._stream = self._stream or self._file.pieces(self._facts, self._at)
            self._window, self._window_start = self._next_piece(), self._at

    def _next_piece(self) -> bytes:
        """The next bytes of the stream."""
        try:
            return next(self._stream, b"")
        except NoRangesError as error:
            self._copy(error.body)
            return os.pread(_copies[self._key].fileno(), BLOCK, self._at)

    def _block(self, start: int) -> bytes:
        if self.size is None:
            raise WebError("the server does not say how long it is")
        if self._blocks is None:
            self._close_stream()
            self._blocks = {}
        block = self._blocks.pop(start, None)
        if block is None:
            block = self._read_block(start)
        self._blocks[start] = block  # the latest is the last
        if len(self._blocks) > _NUM_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        return block

    def _read_block(self, start: int) -> bytes:
        if self._key not in _copies:
            try:
                return b"".join(self._file.pieces(self._facts, start, start + BLOCK))
            except NoRangesError as error:
                self._copy(error.body)
        return os.pread(_copies[self._key].fileno(), BLOCK, start)

    def _copy(self, body: Body) -> None:
        """Writes the file, of which `body` has the bytes, to a temporary file, which is removed with the process."""
        folder = config.home()
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.ExitStack() as at_failure, contextlib.closing(body):
            given_files.check_room(folder, self.size or 0, self._file.where)
            events.note(f"{self._file.where}: the server gives no parts of it, so it is copied to a temporary file")
            copy = at_failure.enter_context(tempfile.TemporaryFile(dir=folder))
            for piece in self._file.pieces(self._facts, body=body):
                copy.write(piece)
            copy.flush()
            at_failure.pop_all()
        for other in _copies.values():
            other.close()
        _copies.clear()
        _copies[self._key] = copy

    def _close_stream(self) -> None:
        if self._stream is not None:
            with contextlib.suppress(ValueError):  # it is being read by a thread that is left
                self._stream.close()

    def close(self) -> None:
        """Ends the connection."""
        self._close_stream()
        super().close()
