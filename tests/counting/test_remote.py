"""Counts tables at URLs: downloaded once from a server of this machine, resumed, and refused unless
they are what was written."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
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
from tests.text.web import TAG


@pytest.fixture
def served(counted, tmp_path, monkeypatch) -> Path:  # noqa: F811
    """A counts table, in a folder that is served."""
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    (tmp_path / "served").mkdir()
    return Path(shutil.copyfile(counted, tmp_path / "served" / "counts.duckdb"))


@pytest.fixture
def shared(served) -> Iterator[str]:
    """The URL of the counts table that is served."""
    with web.serving(web.files_of(served.parent)) as server:
        yield f"{server.url}/counts.duckdb"


def refused(url: str) -> str:
    with pytest.raises(UserError) as caught:
        remote.downloaded_counts(url)
    assert "\n" not in caught.value.line()
    return caught.value.line()


def nothing_is_left(home: Path) -> bool:
    return not [path for path in home.rglob("*") if path.is_file()]


@pytest.mark.parametrize("ranges", [True, False])
def test_a_table_is_downloaded_once(served, counted, ranges):  # noqa: F811
    wanted = read_meta(counted)["id"]
    expected = recallkit.bigrams(counted).rows()
    with web.serving(web.files_of(served.parent, ranges=ranges)) as server:
        url = f"{server.url}/counts.duckdb"
        for _ in range(2):
            assert (
                recallkit.bigrams(url).rows()
                == recallkit.bigrams(f"{url}#{wanted}").rows()
                == expected
            )
            served.unlink(missing_ok=True)


def test_slices_have_its_counts(shared, counted, tmp_path, run):  # noqa: F811
    url = shared
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


def test_an_interrupted_download_resumes(shared, served, monkeypatch, tmp_path):
    quarter = served.stat().st_size // 4
    monkeypatch.setattr(remote, "_CHUNK", quarter)
    commit, commits = remote.Journal.commit, []

    def recording(journal, state):
        commit(journal, state)
        commits.append(state["bytes"])
        if len(commits) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(remote.Journal, "commit", recording)
    with pytest.raises(KeyboardInterrupt):
        remote.downloaded_counts(shared)
    table = remote.downloaded_counts(shared)
    assert commits[2] > commits[1] == 2 * quarter, "the first two quarters are not asked for again"
    assert table.read_bytes() == served.read_bytes()
    assert [path.name for path in (tmp_path / "home/counts").iterdir()] == [table.name]


def test_what_is_not_the_table_is_refused(shared, served, counted, tmp_path):  # noqa: F811
    url = shared
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


def hub_of(table: Path) -> web.Mode:
    """The part of the hub's interface by which files are read: a data set me/counts with one."""
    size = table.stat().st_size
    file = {"type": "file", "path": "counts.duckdb", "size": size, "oid": "1" * 40}
    revision = {"id": "me/counts", "sha": "2" * 40, "siblings": []}

    def mode(request: web.Request) -> None:
        if not request.path.startswith("/api/"):
            request.part(table.read_bytes(), TAG)
        elif not request.path.startswith("/api/datasets/me/counts"):
            request.answer(404, "X-Error-Code: RepoNotFound", body=b"{}")
        else:
            is_list = request.method == "POST" or "/tree/main" in request.path
            request.answer(200, body=json.dumps([file] if is_list else revision).encode())

    return mode


def test_a_data_set_of_the_hub(served, counted, monkeypatch):  # noqa: F811
    constants = huggingface_hub.constants
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE
    with web.serving(hub_of(served)) as server:
        template = template.replace(constants.ENDPOINT, server.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        HfFileSystem.clear_instance_cache()
        downloaded = remote.downloaded_counts("hf://me/counts/counts.duckdb")
        assert open_counts(downloaded).meta == read_meta(counted)
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


# a connection that is left
@pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning",
)
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
