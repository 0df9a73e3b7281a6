"""Signed URLs: what may be a key in one is in no file and no output, whether a command ends well or
not."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from recallkit.errors import redacted
from recallkit.text import connection
from tests.conftest import made_up_texts
from tests.text.web import TAG, Request, serving

SECRET = "SeCrEt42"
LINES = b"".join(json.dumps({"text": text}).encode() + b"\n" for text in made_up_texts(40, 200))


@pytest.fixture
def signed(tmp_path, monkeypatch):
    """The address of a server, less http://, of a text, an archive and what a test adds; waits are
    none."""
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as zipped:
        zipped.writestr("in/a.jsonl", LINES)
    files = {"/a.jsonl": LINES, "/all.zip": archive.getvalue(), "/bad.jsonl": b"nothing\n"}

    def mode(request: Request) -> None:
        assert SECRET in request.path
        content = files.get(request.path.partition("?")[0])
        request.answer(404) if content is None else request.part(content, TAG)

    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(connection, "sleep", lambda seconds: None)
    monkeypatch.chdir(tmp_path)
    with serving(mode) as server:
        yield server.url.removeprefix("http://"), files


def check_secret(folder, *done) -> None:
    for each in done:
        assert SECRET not in each.stdout
        assert SECRET not in each.stderr
    for path in folder.rglob("*"):
        assert SECRET not in path.name
        assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


@pytest.mark.parametrize("log", [[], ["--log-json"]], ids=["lines", "events"])
def test_no_command_writes_what_signs_a_url(signed, run, tmp_path, log):
    host, files = signed
    text = f"http://me:{SECRET}@{host}/a.jsonl?X-Amz-Signature={SECRET}&x=({SECRET})'{SECRET}#token={SECRET}"
    archived = f"zip://in/a.jsonl::http://{host}/all.zip?sig={SECRET}"
    done = [run("count", text, archived, "-o", tmp_path / "counts.duckdb", *log)]
    files["/counts.duckdb"] = (tmp_path / "counts.duckdb").read_bytes()
    counts = f"http://{host}/counts.duckdb?sig={SECRET}"
    outs = (["-o", tmp_path / "slices"], ["-o", tmp_path / "slices", "--json"], [])
    done += [
        run("slice", text, archived, "--counts", counts, "--seq-len", 64, *out, *log)
        for out in outs
    ]
    done.append(
        run("gap", "control:recall", "control:bigram", "--slices", tmp_path / "slices", *log)
    )
    done += [run(command, tmp_path / "slices", *log) for command in ("report", "tokens")]
    assert [each.returncode for each in done] == [0] * len(done), done[-1].stderr
    assert json.loads((tmp_path / "slices/manifest.json").read_text())["names"] == [
        f"http://***@{host}/a.jsonl?***",
        f"zip://in/a.jsonl::http://{host}/all.zip?***",
    ]
    check_secret(tmp_path, *done)


MISTAKES = {
    "no such file": "http://{host}/none.jsonl?sig={secret}",
    "no JSON": "http://me:{secret}@{host}/bad.jsonl?sig={secret}",
    "a folder": "http://{host}/folder?sig={secret}",
    "a pattern": "http://{host}/*.jsonl?sig={secret}",
    "no server": "http://127.0.0.1:9/a.jsonl?sig={secret}",
    "no URL": "http://[::1/a.jsonl?sig={secret}",
    "no protocol": "nowhere://me:{secret}@host/a.jsonl?sig={secret}",
    "no package": "s3://key:{secret}@bucket/a.jsonl?versionId={secret}",
    "no archive": "zip://a.jsonl::http://{host}/a.jsonl?sig={secret}",
    "nothing in it": "zip://b.jsonl::http://{host}/all.zip?sig={secret}",
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_no_error_does(signed, run, tmp_path, mistake):
    host, _ = signed
    url = MISTAKES[mistake].format(host=host, secret=SECRET)
    done = [run("count", url), run("slice", "demo:validation", "--counts", url)]
    done += [
        run("report", url),
        run("count", "demo:validation", "-o", url),
        run("score", f"openai:{url}#m", "--slices", url),
    ]
    done += [
        run("verify", url),
        run("report", "--with", url, tmp_path),
        run("profile", "demo:validation", "--stop-words", url),
    ]
    assert 0 not in [each.returncode for each in done]
    assert all(each.stderr.count("\n") < 4 for each in done)
    check_secret(tmp_path, *done)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (
            "https://h/a?sig=1: cannot be read (https://h/a?sig=1), 'https://h/b?c'",
            "https://h/a?***: cannot be read (https://h/a?***), 'https://h/b?***'",
        ),
        ("zip://a::https://me:pw@h/b.zip?x#y", "zip://a::https://***@h/b.zip?***"),
        ("https://h/a#access_token=1&b=2", "https://h/a#***"),
        (
            "openai:http://localhost:8000/v1#ORG/M,tokenizer=gpt2.json",
            "openai:http://localhost:8000/v1#ORG/M,tokenizer=gpt2.json",
        ),
        ("https://h/c.duckdb#0123abcd", "https://h/c.duckdb#0123abcd"),
        ("hf://datasets/o/n@main/a.jsonl", "hf://datasets/o/n@main/a.jsonl"),
        ("did you mean https://h/a? or what?", "did you mean https://h/a? or what?"),
    ],
)
def test_what_is_secret_in_a_url(text, shown):
    assert redacted(text) == shown


def test_long_texts_are_redacted_soon():
    for text in (
        "://" * 300_000,
        "#" * 300_000 + "://",
        "://" + "#a" * 300_000,
        "://" + "?" * 300_000 + ":" * 300_000,
    ):
        assert len(redacted(text)) <= len(text) + 10
