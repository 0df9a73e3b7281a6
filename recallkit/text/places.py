"""Files here, and files elsewhere by fsspec (`s3://`, `gs://`, `hf://` ...) or `web_files`
(`https://`): what readers need of a path.

A protocol other than HTTP and the hub's needs its package (s3fs, gcsfs ...), which the user
installs; keys, proxies and addresses are those that this package finds in the environment, and it
tries again by its own rules. Nothing is kept on disk.
"""

from __future__ import annotations

import functools
import os
import posixpath
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from recallkit.errors import UserError, lacks_resources, redacted
from recallkit.storage import given_files, hashing
from recallkit.storage.given_files import check_part

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

Answer = TypeVar("Answer")

_CHECKSUMS = (
    "ETag",
    "etag",
    "blob_id",
    "CRC",
    "md5Hash",
    "md5",
    "checksum",
    "Content-MD5",
    "Digest",
)
"""What file systems call a file's checksum, or the tag that changes with its content."""
_PACKAGES = {
    "s3": "s3fs",
    "s3a": "s3fs",
    "gs": "gcsfs",
    "gcs": "gcsfs",
    "abfs": "adlfs",
    "az": "adlfs",
    "sftp": "paramiko",
}
_CHAIN = "::"
_WEB = re.compile(r"https?://", re.IGNORECASE)


def is_url(argument: str) -> bool:
    """Whether a source is read by fsspec rather than from a path."""
    return "://" in argument


@dataclass(frozen=True, slots=True)
class RemotePath:
    """A file or folder at a URL, with those methods of `pathlib.Path` that readers use.

    All raise UserError for a protocol that is unknown or whose package is missing, and OSError for
    what cannot be read.
    """

    url: str

    def __str__(self) -> str:
        """The URL, without what may be secret in it."""
        return redacted(self.url)

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last part of the URL's path, without a query; of a chain (`zip://a.jsonl::s3://...`)
        that of its first URL."""
        first = self.url.split(_CHAIN)[0].partition("?")[0]
        if _WEB.match(first):
            first = first.partition("#")[0]
        return posixpath.basename(first.rstrip("/"))

    @property
    def parent(self) -> RemotePath:
        """The folder that it is in."""
        return RemotePath(self.url.partition("?")[0].rpartition("/")[0])

    @property
    def is_pattern(self) -> bool:
        """Whether it is to be expanded. `?` belongs to a query, which on the web is one file's."""
        if _CHAIN in self.url or (_WEB.match(self.url) and "?" in self.url):
            return False
        return any(sign in self.url for sign in "*[")

    def info(self) -> dict[str, Any]:
        """What the file system knows of the file now: its size, and often a checksum."""

        def ask(files: Any, path: str) -> dict[str, Any]:
            files.invalidate_cache()
            facts: dict[str, Any] = files.info(path)
            return facts

        return self._call(ask)

    def digest(self) -> str:
        """A digest of the size and the server's checksum or tag; without one that of samples, as of
        a local file."""
        info = self.info()
        size = info.get("size")
        checksum = next((info[name] for name in _CHECKSUMS if info.get(name)), None)
        if checksum is not None or size is None:
            facts = [self.name, size, str(checksum or info.get("Last-Modified"))]
            return hashing.digest_json(facts)

        def sample(files: Any, path: str) -> str:
            return hashing.digest_samples(size, functools.partial(files.cat_file, path))

        return self._call(sample)

    def below(self) -> list[str]:
        """The paths of all files in this folder and its subfolders, relative to it; none if it is
        not a folder."""

        def find(files: Any, path: str) -> list[str]:
            root = f"{path.rstrip('/')}/"
            return [file[len(root) :] for file in files.find(path) if file.startswith(root)]

        return self._call(find)

    def matches(self) -> list[RemotePath]:
        """The files that a pattern matches, sorted."""

        def match(files: Any, path: str) -> list[str]:
            return sorted(map(files.unstrip_protocol, files.glob(path)))

        return [RemotePath(url) for url in self._call(match)]

    def read_bytes(self, most: int = given_files.MAX_JSON_BYTES) -> bytes:
        """The whole file. Raises UserError for one of more than `most` bytes."""
        with self.open() as file:
            content: bytes = file.read(most + 1)
        if len(content) > most:
            problem = f"a file of more than {most:,} bytes"
            raise UserError(problem, where=self, remedy="check that it is the right file")
        return content

    def open(self) -> Any:
        """The file, to be read from its start; its own errors are OSErrors, too."""
        return self._call(lambda files, path: _File(files.open(path, "rb"), files))

    def _call(self, question: Callable[[Any, str], Answer]) -> Answer:
        """What a file system, given with the path in it, answers."""
        import fsspec

        protocol = self.url.partition("://")[0]
        is_web = _WEB.match(self.url.rpartition(_CHAIN)[2])
        opened = _on_the_web if is_web else fsspec.core.url_to_fs
        try:
            return _os_errors(lambda: question(*opened(self.url)))
        except ImportError as error:
            problem = f"{protocol}:// needs a package that is not installed ({error})"
            remedy = f"pip install {_PACKAGES.get(protocol, 'that package')}"
            raise UserError(problem, where=self.url, remedy=remedy) from error
        except OSError as error:
            if "rotocol not known" not in str(error):
                raise
            remedy = "give a protocol that fsspec knows, such as s3://, gs://, hf:// or https://"
            raise UserError("an unknown protocol", where=self.url, remedy=remedy) from error


def _on_the_web(url: str) -> tuple[Any, str]:
    """The file system of a URL on a web server, also of an archive there, and the path in it."""
    from fsspec import get_filesystem_class
    from fsspec.archive import AbstractArchiveFileSystem

    from recallkit.text.web_files import WebFiles

    *archives, path = url.split(_CHAIN)
    files: Any = WebFiles()
    for archive in reversed(archives):
        protocol, _, inside = archive.partition("://")
        kind = get_filesystem_class(protocol)
        if not issubclass(kind, AbstractArchiveFileSystem):
            problem = f"{protocol}:// cannot be read in a file of a web server"
            remedy = "name the file itself, or zip:// or tar:// in it"
            raise UserError(problem, where=redacted(url), remedy=remedy)
        files, path = kind(fo=files.open(path)), inside
    return files, path


def _os_errors(call: Callable[[], Answer]) -> Answer:
    """The value of a call into a file system, whose own errors become OSErrors: what readers expect
    of a file that cannot be read."""
    try:
        return call()
    except (OSError, ImportError, UserError):
        raise
    except Exception as error:
        if lacks_resources(error):
            raise
        raise OSError(next(iter(str(error).splitlines()), "") or type(error).__name__) from error


class _File:
    """An opened remote file; the archive that it is in is closed with the last reference to it."""

    def __init__(self, file: Any, files: Any) -> None:
        self._file = file
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def read(self, size: int = -1) -> bytes:
        """Up to `size` bytes.

        Raises OSError for far too many, and for fewer in the file than its size.
        """
        most = getattr(self._file, "size", None)
        wanted = size if size >= 0 else most or 0
        check_part(wanted)
        content = _os_errors(lambda: bytes(self._file.read(size)))
        if len(content) < wanted and isinstance(most, int) and (end := self._file.tell()) < most:
            raise OSError(f"it ends after {end:,} of {most:,} bytes")
        return content


AnyPath = Path | RemotePath
"""A file here or elsewhere."""


def open_arrow(path: AnyPath, *, mapped: bool = False) -> pa.NativeFile:
    """The file for pyarrow; a local one is mapped into memory with `mapped`.

    Raises OSError if it cannot be opened.
    """
    import pyarrow as pa

    if isinstance(path, RemotePath):
        return pa.PythonFile(path.open(), "r")
    return pa.memory_map(str(path)) if mapped else pa.OSFile(str(path))


def size_of(path: AnyPath) -> int | None:
    """Bytes of the file; None if a server does not tell. Raises OSError if it is not there."""
    return path.info().get("size") if isinstance(path, RemotePath) else path.stat().st_size


def digest_of(path: AnyPath) -> str:
    """A digest that changes when the content does: of length and samples, or of what the server
    says. Raises OSError."""
    return path.digest() if isinstance(path, RemotePath) else hashing.digest_sample(path)


def files_below(path: AnyPath) -> list[str]:
    """The paths of the files in a folder and its subfolders, relative to it, in no order; hidden
    folders of this machine are left out."""
    if isinstance(path, RemotePath):
        return path.below()
    names = []
    for folder, subfolders, files in os.walk(path):
        subfolders[:] = [subfolder for subfolder in subfolders if not subfolder.startswith(".")]
        names += [Path(folder, file).relative_to(path).as_posix() for file in files]
    return names
