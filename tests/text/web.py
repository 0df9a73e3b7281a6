"""A web server of this machine that answers as a test says, counts what it sends, and may be
hostile."""

from __future__ import annotations

import contextlib
import re
import socketserver
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path

CHUNK = 1 << 16


@dataclass
class Request:
    """What was asked: `sock` is answered on."""

    method: str
    path: str
    headers: dict[str, str]
    number: int
    server: Server

    @property
    def wanted(self) -> tuple[int, int | None] | None:
        """The first byte of a range and, if it has one, its end."""
        matched = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("range", ""))
        return matched and (int(matched[1]), int(matched[2]) + 1 if matched[2] else None)

    def send(self, content: bytes) -> None:
        """Sends and counts bytes."""
        for start in range(0, len(content), CHUNK):
            self.server.sock.sendall(content[start : start + CHUNK])
            self.server.sent += len(content[start : start + CHUNK])

    def head(self, status: int, *lines: str) -> None:
        """Sends the beginning of an answer."""
        self.send(
            "\r\n".join([f"HTTP/1.1 {status} X", *lines, "Connection: close", "", ""]).encode(
                "latin-1",
            )
        )

    def answer(
        self,
        status: int,
        *lines: str,
        body: bytes = b"",
        length: int | None = None,
    ) -> None:
        """Sends an answer, of a HEAD request without its body; `length` is claimed."""
        self.head(status, *lines, f"Content-Length: {len(body) if length is None else length}")
        if self.method != "HEAD":
            self.send(body)

    def part(self, content: bytes, *lines: str, ranges: bool = True) -> None:
        """Answers as a decent server does, with a range where one is wanted."""
        if self.wanted is None or not ranges:
            self.answer(200, *lines, body=content)
            return
        start, stop = self.wanted
        stop = min(len(content), stop or len(content))
        if start >= len(content):
            self.answer(416, f"Content-Range: bytes */{len(content)}")
            return
        self.answer(
            206,
            *lines,
            f"Content-Range: bytes {start}-{stop - 1}/{len(content)}",
            body=content[start:stop],
        )


Mode = Callable[[Request], None]
TAG = 'ETag: "one"'
DATE = f"Last-Modified: {formatdate(1e9, usegmt=True)}"


@dataclass
class Server:
    """What a server has been asked, and how many bytes it sent."""

    url: str = ""
    mode: Mode = lambda request: request.answer(404)
    sent: int = 0
    requests: list[Request] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)
    local: threading.local = field(default_factory=threading.local)

    @property
    def sock(self):
        """The connection that this thread answers on."""
        return self.local.sock

    def rest(self, seconds: float = 60.0) -> None:
        """Does nothing, until the test ends."""
        self.ended.wait(seconds)


def files_of(folder: Path, *, ranges: bool = True) -> Mode:
    """Files of a folder, with a tag that changes with their content, as stores of objects do."""

    def mode(request: Request) -> None:
        path = folder / request.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            request.answer(404)
            return
        content = path.read_bytes()
        request.part(content, f'ETag: "{hash(content)}"', ranges=ranges)

    return mode


@contextlib.contextmanager
def serving(mode: Mode | None = None, host: str = "127.0.0.1") -> Iterator[Server]:
    """A server that answers in this mode."""
    server = Server()
    if mode is not None:
        server.mode = mode

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            server.local.sock = self.request
            line = self.rfile.readline().decode("latin-1").split()
            headers = {}
            while text := self.rfile.readline().decode("latin-1").strip():
                name, _, value = text.partition(":")
                headers[name.lower()] = value.strip()
            if len(line) < 2:
                return
            request = Request(line[0], line[1], headers, len(server.requests), server)
            server.requests.append(request)
            with contextlib.suppress(OSError):
                server.mode(request)

    class Threads(socketserver.ThreadingMixIn, socketserver.TCPServer):
        daemon_threads = True
        allow_reuse_address = True
        block_on_close = False

    with Threads((host, 0), Handler) as listening:
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        server.url = f"http://{host}:{listening.server_address[1]}"
        try:
            yield server
        finally:
            server.ended.set()
            listening.shutdown()
            thread.join()
