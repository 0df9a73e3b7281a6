"""Files of web servers, decent and hostile: each is read right, or refused in one line, in bounded
time and traffic."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
import tracemalloc
import zipfile

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from recallkit import config
from recallkit.errors import UserError
from recallkit.text import connection, web_files, web_server
from recallkit.text.corpus import open_corpus
from tests.conftest import made_up_texts
from tests.text.web import DATE, TAG, Request, serving

TEXTS = made_up_texts(400, 700)
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in TEXTS)
TERABYTES = 10**13


pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
"""A connection that is left is closed by the collector of garbage: to close it would wait for its
thread."""


@pytest.fixture(autouse=True)
def impatient(monkeypatch, tmp_path):
    """Waits before further tries are none."""
    waited = []
    monkeypatch.setattr(web_server, "PIECE", 1 << 14)
    monkeypatch.setattr(connection, "sleep", waited.append)
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 0.5)
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    yield waited
    while web_files._copies:
        web_files._copies.popitem()[1].close()


def read(url: str) -> list[str]:
    """One pass, as `count` and `slice` make it."""
    corpus = open_corpus([url])
    digests = corpus.digests()
    texts = [document.text for document in corpus.documents()]
    assert corpus.digests() == digests
    return texts


def refusal(url: str) -> str:
    with pytest.raises(UserError) as caught:
        read(url)
    line = caught.value.line()
    assert caught.value.remedy
    assert "\n" not in line
    assert len(line) < 400
    return line


def bodies(requests: list[Request]) -> list[Request]:
    """The requests for all, or for much."""
    return [
        request
        for request in requests
        if request.method == "GET" and request.headers.get("range") != "bytes=0-0"
    ]


# ------------------------------------------------------------------------------------------- decent


def plain(request: Request) -> None:
    request.part(LINES, DATE, ranges=False)


def tagged(request: Request) -> None:
    request.part(LINES, TAG)


def bare(request: Request) -> None:
    """No tag, no date."""
    request.part(LINES)


def weakly(request: Request) -> None:
    assert "if-range" not in request.headers
    request.part(LINES, 'ETag: W/"one"')


def no_head(request: Request) -> None:
    """As URLs that are signed for GET."""
    request.answer(403) if request.method == "HEAD" else request.part(LINES, TAG)


def no_length_of_head(request: Request) -> None:
    request.head(200, TAG) if request.method == "HEAD" else request.part(LINES, TAG)


def once_500(request: Request) -> None:
    request.answer(500) if request.number == 0 else tagged(request)


def once_429(request: Request) -> None:
    request.answer(429, "Retry-After: 7") if request.number == 0 else tagged(request)


def once_closed(request: Request) -> None:
    if request.number:
        tagged(request)


def breaks_off(request: Request) -> None:
    """Half of what is asked for, twice."""
    start = request.wanted[0] if request.wanted else 0
    lines = (
        [f"Content-Range: bytes {start}-{len(LINES) - 1}/{len(LINES)}"] if request.wanted else []
    )
    body = LINES[start : start + (len(LINES) - start) // 2 + 100]
    if len(bodies(request.server.requests)) > 2:
        request.part(LINES, TAG)
    else:
        request.answer(206 if lines else 200, TAG, *lines, body=body, length=len(LINES) - start)


def same_host(request: Request) -> None:
    request.answer(302, "Location: ../b/data.jsonl") if request.path.startswith("/a") else tagged(
        request,
    )


def same_host_in_utf8(request: Request) -> None:
    if request.path.startswith("/a"):
        request.answer(302, f"Location: {'/b/dätä 1.jsonl'.encode().decode('latin-1')}")
    elif request.path == "/b/d%C3%A4t%C3%A4%201.jsonl":
        tagged(request)
    else:
        request.answer(404)


def more_after_the_length(request: Request) -> None:
    request.answer(200, DATE, body=LINES + b"{}\n" * 99, length=len(LINES))


def declares_identity(request: Request) -> None:
    request.part(LINES, TAG, "Content-Encoding: identity")


def slow_but_steady(request: Request) -> None:
    request.head(200, TAG, f"Content-Length: {len(LINES)}")
    if request.method == "GET":
        for start in range(0, len(LINES), 1 << 15):
            time.sleep(0.02)
            request.send(LINES[start : start + (1 << 15)])


DECENT = [
    plain,
    tagged,
    bare,
    weakly,
    no_head,
    no_length_of_head,
    once_500,
    once_429,
    once_closed,
    breaks_off,
    same_host,
    same_host_in_utf8,
    more_after_the_length,
    declares_identity,
    slow_but_steady,
]


@pytest.mark.parametrize("mode", DECENT, ids=lambda mode: mode.__name__)
def test_a_server_is_read_once(mode, impatient):
    with serving(mode) as server:
        assert read(f"{server.url}/a/data.jsonl") == TEXTS
        times = {breaks_off: 3, plain: 2, more_after_the_length: 2, slow_but_steady: 2}.get(mode, 1)
        samples = 32 if mode is bare else 0
        redirections = int(mode in (same_host, same_host_in_utf8))
        assert server.sent < times * len(LINES) + samples * (1 << 16) + 100_000
        assert len(bodies(server.requests)) <= times + samples + redirections
        assert impatient[:1] == (
            [7] if mode is once_429 else [1] if mode in (once_500, once_closed, breaks_off) else []
        )


def test_a_name_may_say_how_it_is_compressed():
    content = gzip.compress(LINES)
    with serving(lambda request: request.part(content, TAG, "Content-Encoding: x-gzip")) as server:
        assert read(f"{server.url}/data.jsonl.gz") == TEXTS


# ------------------------------------------------------------------------------------------ hostile


def says(status: int, *lines: str, body: bytes = b"") -> object:
    return lambda request: request.answer(status, *lines, body=body)


def on_get(answer):
    """Decent but for the body."""
    return lambda request: tagged(request) if request.method == "HEAD" else answer(request)


def silent(request):
    request.server.rest()


def headers_then_silence(request):
    request.head(200, TAG, f"Content-Length: {len(LINES)}")
    request.server.rest()


def half_then_silence(request):
    request.answer(200, TAG, body=LINES[:100_000], length=len(LINES))
    request.server.rest()


def drips(request):
    request.head(200, TAG, f"Content-Length: {len(LINES)}")
    for byte in LINES:
        request.send(bytes([byte]))
        request.server.ended.wait(0.1)


def drips_headers(request):
    request.send(b"HTTP/1.1 200 OK\r\n")
    for number in range(10_000):
        request.send(b"X-%d: y\r\n" % number)
        request.server.ended.wait(0.1)


def continues(request):
    while not request.server.ended.is_set():
        request.send(b"HTTP/1.1 100 Continue\r\n\r\n")


def huge_header(request):
    request.send(b"HTTP/1.1 200 OK\r\nX: " + b"y" * 1_000_000)


def many_headers(request):
    request.send(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000)


def terabytes_of_one_line(request):
    request.head(200, TAG, f"Content-Length: {TERABYTES}")
    while request.method == "GET":
        request.send(b"x" * 65536)


def chunks_without_end(request):
    request.head(200, TAG, "Transfer-Encoding: chunked")
    while request.method == "GET":
        request.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")


def in_chunks(*chunks: bytes, without_end: bytes = b""):
    """A decent description, a part in these chunks."""

    def mode(request):
        if not request.wanted or request.wanted == (0, 1):
            tagged(request)
            return
        request.head(
            206,
            TAG,
            f"Content-Range: bytes 0-{len(LINES) - 1}/{len(LINES)}",
            "Transfer-Encoding: chunked",
        )
        for chunk in chunks:
            request.send(chunk)
        while without_end:
            request.send(without_end)

    return mode


def ends_early(request):
    request.answer(200, DATE, body=LINES[:-1000], length=len(LINES))


def without_length(request):
    request.head(200, TAG)
    request.send(LINES if request.method == "GET" else b"")


def part_unasked(request):
    """All of it is requested after a request for a part, which was answered with all."""
    lines = [] if request.wanted else [f"Content-Range: bytes 0-{len(LINES) - 1}/{len(LINES)}"]
    request.answer(206 if lines else 200, TAG, *lines, body=LINES)


def other_size(request):
    request.answer(200, TAG, body=LINES + b"{}\n")


def other_tag(request):
    request.answer(200, 'ETag: "two"', body=LINES)


def tag_of_each(request):
    request.answer(200, f'ETag: "{request.number}"', body=LINES)


def loops(request):
    request.answer(302, f"Location: {request.path}x")


def no_bytes(request):
    request.send(b"")


def no_http(request):
    request.send(b"\x00\xff" * 5000 + b"\r\n\r\n")


def compressed(request):
    request.answer(200, TAG, "Content-Encoding: gzip", body=gzip.compress(LINES))


ERROR = b"<html><body>Please log in</body></html>"
LATE = r"silent, or too slow: nothing complete within 1.5 s"
HOSTILE = {
    "silent": (silent, LATE),
    "silent to GET": (on_get(silent), LATE),
    "headers then silence": (on_get(headers_then_silence), LATE),
    "half then silence": (on_get(half_then_silence), rf"line \d+: cannot be read further .*{LATE}"),
    "drip": (on_get(drips), LATE),
    "drip of headers": (drips_headers, LATE),
    "continue without end": (continues, LATE),
    "huge header": (huge_header, "cannot be reached.*more than 65536 bytes"),
    "many headers": (many_headers, "cannot be reached.*more than 100 headers"),
    "no answer": (no_bytes, "cannot be reached"),
    "no HTTP": (no_http, "cannot be reached"),
    "10 TB": (
        terabytes_of_one_line,
        "it has 10,000,000,000,000 bytes, but .* has [0-9,]+ free; make room",
    ),
    "chunks without end": (chunks_without_end, "does not say how long it is; download it"),
    "broken chunks": (in_chunks(b"5000\r\n", LINES[:1000], b"\r\nzzz\r\n"), "breaks off after"),
    "negative chunk": (
        in_chunks(b"-1\r\n", without_end=b"x" * 65536),
        "breaks off after 0 bytes .a chunk of negative size",
    ),
    "more chunks than promised": (
        in_chunks(b"%x\r\n" % len(LINES), LINES, b"\r\n5\r\n{  }\n\r\n0\r\n\r\n"),
        "more than the 623,346 bytes",
    ),
    "fewer bytes": (ends_early, "breaks off after 622,346 of 623,346 bytes, after 4 tries"),
    "no length": (without_length, "does not say how long it is; download it"),
    "a part, unasked": (on_get(part_unasked), "a part of it, but all was requested"),
    "another size": (on_get(other_size), "changed while it was read"),
    "another tag": (on_get(other_tag), "changed while it was read"),
    "a tag each time": (tag_of_each, "changed while it was read"),
    "gzip": (compressed, r"compresses it \(gzip\), which was not requested"),
    "gzip of the body": (on_get(compressed), r"compresses it \(gzip\)"),
    "no content": (says(204), "it answers 204"),
    "not modified": (says(304), r"it answers 304 \(Not Modified\)"),
    "wrong range, always": (says(416), r"it answers 416"),
    "no right": (says(403), r"it answers 403 \(Forbidden\)"),
    "no user": (says(401), r"it answers 401 \(Unauthorized\)"),
    "not there": (says(404), "no such file"),
    "always 500": (says(500), r"it answers 500 \(Internal Server Error\), after 4 tries"),
    "always 503": (says(503, "Retry-After: 999999"), "it answers 503 .*, after 4 tries"),
    "a page": (says(200, TAG, body=ERROR), "line 1: not JSON"),
    "nothing": (says(200, TAG), "contains no record"),
    "redirects without end": (loops, "it redirects more than 5 times"),
    "to another host": (
        says(302, "Location: http://localhost:1/a.jsonl"),
        r"another host \(http://localhost\); give the URL",
    ),
    "to another port": (says(307, "Location: http://127.0.0.1:1/a.jsonl"), "another host"),
    "to no host": (says(301, "Location: //"), "redirects more than 5 times"),
    "to a bad address": (says(301, "Location: http://[::1"), "another host"),
    "to a file": (says(302, "Location: file:///etc/passwd"), "another host"),
    "to ftp": (says(302, "Location: ftp://127.0.0.1/a"), "another host"),
    "to nowhere": (says(302), r"it answers 302 \(Found\)"),
    "to many": (says(300), r"it answers 300"),
    "neither tag, date nor ranges": (
        says(200, body=LINES),
        "neither tag, date nor parts of it, so a change would go unnoticed",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_server_is_one_line(name, impatient, monkeypatch):
    mode, problem = HOSTILE[name]
    monkeypatch.setattr(web_server, "SECONDS", 1.5 if LATE in problem else 60)
    with serving(mode) as server:
        begun = time.monotonic()
        line = refusal(f"{server.url}/data.jsonl")
        assert re.search(problem, line), line
        assert time.monotonic() - begun < 30
        assert all(seconds <= 60 for seconds in impatient)
        assert server.sent < 70_000_000


RANGES = {
    "another start": "Content-Range: bytes 5-{last}/{size}",
    "another end": "Content-Range: bytes {start}-{start}/{size}",
    "another size": "Content-Range: bytes {start}-{last}/99999999",
    "an unknown size": "Content-Range: bytes {start}-{last}/*",
    "no range": "X-Nothing: 0",
    "other units": "Content-Range: lines {start}-{last}/{size}",
    "a size without end": "Content-Range: bytes {start}-{last}/" + "9" * 5000,
    "several parts": "Content-Type: multipart/byteranges; boundary=x",
    "another tag": 'Content-Range: bytes {start}-{last}/{size}\r\nETag: "two"',
    "another length": "Content-Range: bytes {start}-{last}/{size}\r\nContent-Length: 7",
}


def parquet(texts=TEXTS, **options) -> bytes:
    file = io.BytesIO()
    pq.write_table(
        pa.table({"text": texts, "more": ["x" * 500] * len(texts)}),
        file,
        compression="none",
        **options,
    )
    return file.getvalue()


@pytest.mark.parametrize("name", RANGES)
def test_another_part_than_requested_is_one_line(name):
    content = parquet(row_group_size=50)

    def mode(request: Request) -> None:
        if request.method == "HEAD":
            request.answer(200, TAG, body=content)
            return
        start, stop = request.wanted
        last = min(len(content), stop or len(content)) - 1
        line = RANGES[name].format(start=start, last=last, size=len(content))
        request.answer(206, line, body=content[start : last + 1])

    with serving(mode) as server:
        line = refusal(f"{server.url}/a.parquet")
        assert re.search("another part|tag or date is another|known part of it", line), line


# --------------------------------------------------------------------------------- tables, archives


@pytest.mark.parametrize("ranges", [True, False])
def test_a_table_and_an_archive_are_sent_once(ranges, monkeypatch, tmp_path, capfd):
    monkeypatch.setattr(web_files, "BLOCK", 1 << 16)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("in/a.jsonl", LINES)
        zipped.writestr("other", b"z" * 1_000_000)
    of_paths = {"/a.parquet": parquet(row_group_size=50), "/all.zip": archive.getvalue()}
    with serving(
        lambda request: request.part(of_paths[request.path], TAG, ranges=ranges),
    ) as server:
        for source in ("/a.parquet", "/all.zip"):
            server.sent = 0
            chain = "zip://in/a.jsonl::" if source == "/all.zip" else ""
            assert read(f"{chain}{server.url}{source}") == TEXTS
            times = 1.2 if ranges else 2.2
            assert server.sent < times * len(of_paths[source]) + 200_000
            assert ("copied to a temporary file" in capfd.readouterr().err) is not ranges
    assert list((tmp_path / "home").iterdir()) == [] if not ranges else True


def test_a_part_is_bounded(monkeypatch):
    monkeypatch.setattr(config, "MAX_PART_BYTES", 1 << 16)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        for number in range(1000):
            zipped.writestr(f"{number}" + "x" * 100, b"")
    with serving(lambda request: request.part(archive.getvalue(), TAG)) as server:
        assert "more than the 65,536 that are read together" in refusal(
            f"zip://a.jsonl::{server.url}/all.zip",
        )


def test_only_archives_are_opened_on_the_web():
    line = refusal("simplecache::http://127.0.0.1:9/a.jsonl")
    assert "cannot be read" in line


# ------------------------------------------------------------------------------ folders, identities


def test_a_folder_is_what_its_page_lists(capfd):
    pages = {
        "/f/": b'<html><a href="a.jsonl">a</a> <a href="/f/b.jsonl">b</a> <a href="../c.jsonl">c</a> <a href="?C=N">sort</a>'
        b'<a href="sub/">sub</a> <a href="http://127.0.0.1:1/x.jsonl">x</a> <a href="a.jsonl">again</a>'
        b'<a href="d&amp;e.jsonl">d</a>',
        "/f/sub/": b'<A HREF="d.jsonl">d</A> <a href="../">up</a>',
    }

    def mode(request: Request) -> None:
        if request.path == "/f":
            request.answer(301, "Location: /f/")
        else:
            name = request.path.encode()
            request.part(
                pages.get(request.path) or json.dumps({"text": name.decode()}).encode() + b"\n",
                TAG,
            )

    with serving(mode) as server:
        assert read(f"{server.url}/f") == [
            "/f/a.jsonl",
            "/f/b.jsonl",
            "/f/d&e.jsonl",
            "/f/sub/d.jsonl",
        ]
        assert read(f"{server.url}/f/*.jsonl") == ["/f/a.jsonl", "/f/b.jsonl", "/f/d&e.jsonl"]
        assert read(f"{server.url}/f/a.jsonl?x=*") == ["/f/a.jsonl?x=*"]


def test_folders_without_end_are_one_line(monkeypatch):
    monkeypatch.setattr(web_files, "_MOST_FOLDERS", 20)
    with serving(says(200, body=b'<a href="more/">more</a>')) as server:
        assert "more than 20 folders; name one of them" in refusal(f"{server.url}/f")


def test_a_changed_file_is_another(tmp_path):
    lines = [TAG]
    with serving(lambda request: request.part(LINES, *lines)) as server:
        url = f"{server.url}/data.jsonl"

        def digest(url: str) -> str:
            return open_corpus([url]).digests()[0]

        first = digest(f"{url}?sig=1")
        assert first == digest(f"{url}?sig=2"), "the same content, signed anew"
        lines[:] = [DATE]
        dated = digest(f"{url}?sig=1")
        assert dated not in (first, digest(f"{url}?sig=2")), (
            "without a tag, the URL is of its identity"
        )
        lines[:] = [DATE.replace("2001", "2002")]
        assert digest(f"{url}?sig=1") != dated


# --------------------------------------------------------------------------- users, proxies, bounds


def test_users_and_proxies(monkeypatch):
    with serving(tagged) as server:
        host = server.url.removeprefix("http://")
        assert read(f"http://me:pa%3Ass@{host}/data.jsonl") == TEXTS
        assert {request.headers["authorization"] for request in server.requests} == {
            "Basic bWU6cGE6c3M=",
        }
        assert read(f"http://me@{host}/data.jsonl") == TEXTS
        assert server.requests[-1].headers["authorization"] == "Basic bWU6"
        server.requests.clear()
        monkeypatch.setenv("http_proxy", server.url)
        monkeypatch.setenv("no_proxy", "")
        assert read("http://nowhere.invalid/data.jsonl") == TEXTS
        assert {request.path for request in server.requests} == {
            "http://nowhere.invalid/data.jsonl",
        }
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        assert read(f"{server.url}/data.jsonl") == TEXTS


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/a.jsonl",
        "http://h:x/a.jsonl",
        "http:///a.jsonl",
        "http://h\x00/a.jsonl",
        "http://ä/a.jsonl",
    ],
)
def test_what_is_no_url_is_one_line(url):
    refusal(url)


def test_a_path_may_have_any_characters():
    with serving(tagged) as server:
        assert read(f"{server.url}/ä b/%20c.jsonl") == TEXTS
        assert server.requests[0].path == "/%C3%A4%20b/%20c.jsonl"


def test_waiting_is_said_within_a_second(monkeypatch, capfd):
    monkeypatch.setattr(web_server, "SECONDS", 20)
    monkeypatch.setattr(web_server, "_noted", {})

    def mode(request: Request) -> None:
        request.server.rest(1.3)
        tagged(request)

    with serving(mode) as server:
        open_corpus([f"{server.url}/data.jsonl?sig=secret"])
    assert (
        f"{server.url}/data.jsonl?***: waiting for 127.0.0.1, up to 20 s" in capfd.readouterr().err
    )


def test_memory_does_not_grow_with_a_shard():
    size = 120_000_000
    line = json.dumps({"text": "x" * 50_000}).encode() + b"\n"

    def mode(request: Request) -> None:
        request.head(200, TAG, f"Content-Length: {size // len(line) * len(line)}")
        for _ in range(size // len(line) if request.method == "GET" else 0):
            request.send(line)

    with serving(mode) as server:
        tracemalloc.start()
        num = sum(1 for _ in open_corpus([f"{server.url}/data.jsonl"]).documents())
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert num == size // len(line)
    assert peak < 50_000_000
