"""Counts tables at URLs: downloaded once from a server of this machine, resumed, and refused unless
they are what was written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import huggingface_hub.constants
import pytest
from huggingface_hub import HfFileSystem

import recallkit
from recallkit.counting import open_counts, remote
from recallkit.counting.table import read_meta
from recallkit.errors import UserError
from recallkit.text import connection, web_server
from tests.counting.test_table import changed, counted  # noqa: F401 - a fixture
from tests.text import web
from tests.text.test_remote import FileHandler, server, serving  # noqa: F401 - a fixture
from tests.text.web import TAG


@pytest.fixture
def shared(server, counted, tmp_path, monkeypatch) -> tuple[str, Path]:  # noqa: F811
    """The URL of a counts table, and the file that is served."""
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    address, folder = server
    (folder / "counts.duckdb").write_bytes(counted.read_bytes())
    return f"{address}/counts.duckdb", folder / "counts.duckdb"


def refused(url: str) -> str:
    with pytest.raises(UserError) as caught:
        remote.downloaded_counts(url)
    assert "\n" not in caught.value.line()
    return caught.value.line()


def nothing_is_left(home: Path) -> bool:
    return not [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_table_is_downloaded_once(shared, counted, monkeypatch, ranges):  # noqa: F811
    url, served = shared
    monkeypatch.setattr(FileHandler, "ranges", ranges)
    wanted = read_meta(counted)["id"]
    expected = recallkit.bigrams(counted).rows()
    assert recallkit.bigrams(url).rows() == recallkit.bigrams(f"{url}#{wanted}").rows() == expected
    served.unlink()
    assert recallkit.bigrams(url).rows() == recallkit.bigrams(f"{url}#{wanted}").rows() == expected


def test_slices_have_its_counts(shared, counted, tmp_path, run):  # noqa: F811
    url, _ = shared
    printed = run(
        "slice",
        "demo:validation",
        "--limit-tokens",
        "2k",
        "--counts",
        url,
        "-o",
        tmp_path / "slices",
        "--json",
    )
    assert printed.returncode == 0, printed.stderr
    known = json.loads((tmp_path / "slices/manifest.json").read_text())["counts"]
    assert known["id"] == read_meta(counted)["id"]
    assert Path(known["path"]).read_bytes() == counted.read_bytes()


def test_what_is_not_the_table_is_refused(shared, counted, tmp_path):  # noqa: F811
    url, served = shared
    content = counted.read_bytes()
    assert f"its id is {read_meta(counted)['id']}, not {'0' * 32}" in refused(f"{url}#{'0' * 32}")
    served.write_bytes(content[: len(content) // 2])
    assert "not a complete counts table" in refused(url)
    served.write_bytes(
        changed(
            counted,
            tmp_path,
            'UPDATE bigrams SET "count" = "count" + 1 WHERE "first" < 50',
        ).read_bytes()
    )
    assert "not a complete counts table (damaged (the digest of its counts differs))" in refused(
        url,
    )
    served.write_text("<html>")
    assert "not a complete counts table" in refused(url)
    served.unlink()
    key = f"{url.replace('http://', 'http://me:secret@')}?key=secret"
    assert "no such file there" in refused(key)
    assert "secret" not in refused(key)
    assert "unknown protocol" in refused("nowhere://me/counts.duckdb")
    assert nothing_is_left(tmp_path / "home")


class _Hub(FileHandler):
    """The part of the hub's interface by which files are read: a data set me/counts with one file."""

    def do_GET(self) -> None:  # noqa: N802 - http.server's name
        if not self.path.startswith("/api/"):
            self._answer(with_body=True)
            return
        known = {"id": "me/counts", "sha": "2" * 40, "siblings": []}
        files = [
            {
                "type": "file",
                "path": "counts.duckdb",
                "size": (Path(self.directory) / "counts.duckdb").stat().st_size,
                "oid": "1" * 40,
            }
        ]
        reply = None if not self.path.startswith("/api/datasets/me/counts") else files if "/tree/main" in self.path else known
        body = json.dumps(reply or {}).encode()
        self.send_response(404 if reply is None else 200)
        if reply is None:
            self.send_header("X-Error-Code", "RepoNotFound")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:  # noqa: N802
        self.rfile.read(int(self.headers["Content-Length"]))
        self.path += "/tree/main"
        self.do_GET()

    def translate_path(self, path: str) -> str:
        return super().translate_path(path.replace("/datasets/me/counts/resolve/main/", "/"))


def test_a_data_set_of_the_hub(shared, counted, monkeypatch):  # noqa: F811
    _, served = shared
    endpoint, template = (
        huggingface_hub.constants.ENDPOINT,
        huggingface_hub.constants.HUGGINGFACE_CO_URL_TEMPLATE,
    )
    with serving(served.parent, _Hub) as here:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", here)
        monkeypatch.setattr(
            huggingface_hub.constants,
            "HUGGINGFACE_CO_URL_TEMPLATE",
            template.replace(endpoint, here),
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        HfFileSystem.clear_instance_cache()
        assert open_counts(
            remote.downloaded_counts("hf://me/counts/counts.duckdb"),
        ).meta == read_meta(counted)
        assert "no such file there" in refused("hf://me/others/counts.duckdb")


TERABYTES = 10**13


def endless(request) -> None:
    """Ten terabytes are promised, and ranges ignored."""
    request.head(200, TAG, f"Content-Length: {TERABYTES}")
    while request.method == "GET":
        request.send(b"x" * (1 << 16))


def endless_after(request) -> None:
    """A small size is promised, and more is sent."""
    if request.method == "HEAD":
        request.answer(200, TAG, length=1000)
    else:
        endless(request)


def silent(request) -> None:
    request.server.rest()


def shorter(request) -> None:
    request.answer(200, TAG, body=b"x" * 100_000, length=200_000)


def another_each_time(request) -> None:
    request.answer(200, f'ETag: "{request.number}"', body=b"x" * 100_000)


def elsewhere(request) -> None:
    request.answer(302, "Location: http://localhost:9/counts.duckdb?key=secret")


@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
)  # a connection that is left
@pytest.mark.parametrize(
    ("mode", "problem"),
    [
        (endless, r"it has 10,000,000,000,000 bytes, but .* has [0-9,]+ free; make room"),
        (endless_after, "its size, tag or date is another"),
        (silent, "silent, or too slow: nothing complete within 1.5 s"),
        (shorter, "breaks off after 100,000 of 200,000 bytes"),
        (another_each_time, "changed|another"),
        (
            elsewhere,
            r"it redirects to another host \(http://localhost\); give the URL that it leads to",
        ),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_hostile_server_is_one_line(mode, problem, tmp_path, monkeypatch):
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(web_server, "SECONDS", 1.5 if mode is silent else 60)
    monkeypatch.setattr(connection, "sleep", lambda seconds: None)
    with web.serving(mode) as there:
        line = refused(f"{there.url}/counts.duckdb?key=secret")
    assert re.search(problem, line), line
    assert "secret" not in line
    assert there.sent < 10_000_000
    assert nothing_is_left(tmp_path / "home")


def test_a_table_of_a_known_id_may_be_signed_anew(counted, tmp_path, monkeypatch):  # noqa: F811
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    wanted = read_meta(counted)["id"]
    with web.serving(lambda request: request.part(counted.read_bytes(), TAG)) as there:
        first = remote.downloaded_counts(f"{there.url}/c.duckdb?sig=secret#{wanted}")
        num = len(there.requests)
        assert remote.downloaded_counts(f"{there.url}/c.duckdb?sig=other#{wanted}") == first
        assert len(there.requests) == num
        assert remote.downloaded_counts(
            f"{there.url}/c.duckdb?sig=secret",
        ) != remote.downloaded_counts(f"{there.url}/c.duckdb?sig=other")
