"""`--counts infini-gram:INDEX` against a server that speaks its protocol: counts as of the same
text, asked once, answers checked."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from recallkit import counting, slicing
from recallkit.counting import infini_gram
from recallkit.errors import UserError
from recallkit.options import TextOptions
from recallkit.text.tokenizers import load_tokenizer
from tests.conftest import made_up_texts, write_jsonl

TEXTS = [*made_up_texts(12, 60), "the end", "the end"]
SEPARATOR = 65535


class Handler(BaseHTTPRequestHandler):
    """Counts in a text with a separator after each document, as the service's program answers."""

    def do_POST(self) -> None:
        queries = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.queries.append(queries)
        if len(self.server.queries) > self.server.most:
            return self.answer(400, {"error": "[Flask] too much"})
        if queries["index"] != "v4_mine" or queries["query_type"] != "count":
            return self.answer(400, {"error": f"[Flask] Invalid index: {queries['index']}"})
        ids = (
            queries["query_ids"]
            if "query_ids" in queries
            else self.server.encode(f" {queries['query']}")
            if queries["query"]
            else []
        )
        count = self.server.counts[tuple(ids)] if ids else self.server.total
        reply = {"count": count, "approx": False, "token_ids": ids, "tokens": [], "latency": 0.1}
        return self.answer(200, reply | (self.server.spoilt if len(ids) == 2 else {}))

    def answer(self, status: int, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    """Its `spec`; `asked`, all that was; `most` requests are answered; `spoilt` is in place of the
    same of an answer."""
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "home"))
    tokenizer = load_tokenizer(None)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.encode = lambda text: tokenizer.encode([text])[0].tolist()
    ids = [token for text in TEXTS for token in (*server.encode(text), SEPARATOR)]
    server.counts, server.total = Counter(pairwise(ids)), len(ids)
    server.queries, server.most, server.spoilt = [], 1 << 30, {}
    server.spec = f"infini-gram:http://127.0.0.1:{server.server_port}#v4_mine"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def text(tmp_path) -> TextOptions:
    return TextOptions(
        [
            str(
                write_jsonl(
                    tmp_path / "valid.jsonl",
                    [*["the end"] * 4, *TEXTS[3:7], *made_up_texts(4, 900, seed=9)],
                )
            )
        ]
    )


def labels(folder: Path) -> pl.DataFrame:
    return pl.read_parquet(folder / "tokens.parquet")


def pairs(queries: list[dict]) -> list[tuple[int, ...]]:
    return [tuple(query["query_ids"]) for query in queries if "query_ids" in query]


def test_labels_are_those_of_counting_its_text(server, text, tmp_path):
    counting.count(
        TextOptions([str(write_jsonl(tmp_path / "train.jsonl", TEXTS))], "train"),
        tmp_path / "own.duckdb",
    )
    slicing.slice_text(text, tmp_path / "own", counts=tmp_path / "own.duckdb", seq_len=128)
    manifest = slicing.slice_text(text, tmp_path / "remote", counts=server.spec, seq_len=128)
    own, remote = labels(tmp_path / "own"), labels(tmp_path / "remote")
    assert own["ar_hit"].sum() > 50
    assert remote["ar_hit"].equals(own["ar_hit"])
    assert remote["train_count"].equals(
        own.select(pl.when("repeated").then("train_count"))["train_count"],
    )
    assert manifest["counts"]["num_tokens"] == server.total
    repeated = own.filter("repeated").select("prev_token", "token").unique().rows()
    end = load_tokenizer(None).end_token_id
    assert any(end in pair for pair in repeated)
    separated = np.where(np.array(repeated) == end, SEPARATOR, repeated).tolist()
    assert sorted(pairs(server.queries)) == sorted(map(tuple, separated))
    before = len(pairs(server.queries))
    slicing.slice_text(text, tmp_path / "remote", counts=server.spec, seq_len=128, force=True)
    slicing.slice_text(text, tmp_path / "shorter", counts=server.spec, seq_len=64)
    assert len(pairs(server.queries)) == before, "what is known is not asked for again"


def test_interrupted_questions_resume(server, text, tmp_path, monkeypatch):
    monkeypatch.setattr(infini_gram, "_CHUNK", 20)
    server.most = 90
    with pytest.raises(UserError, match=r"it answers 400 \(.*too much.*answers are kept"):
        slicing.slice_text(text, tmp_path / "slices", counts=server.spec, seq_len=128)
    server.most = 1 << 30
    first = set(pairs(server.queries))
    server.queries.clear()
    slicing.slice_text(text, tmp_path / "slices", counts=server.spec, seq_len=128)
    again = pairs(server.queries)
    assert len(first) > 80
    assert len(first.intersection(again)) <= 20, "at most the chunk that was not complete"
    assert len(again) == len(set(again)) > 30


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ({"count": -1}, "not an exact count"),
        ({"count": True}, "not an exact count"),
        ({"count": 1.0}, "not an exact count"),
        ({"count": 10**9}, "not an exact count"),
        ({"count": None}, "not an exact count"),
        ({"approx": True}, "not an exact count"),
        ({"token_ids": [1, 2, 3]}, r"it answers for the tokens \[1, 2, 3\]"),
        ({"token_ids": None}, "does not say which tokens"),
        ({"error": "out of range\x1b[2J"}, r"it answers: out of range\\x1b\[2J"),
        ({"tokens": "x" * (1 << 17)}, "an answer of more than 65,536 bytes"),
    ],
    ids=str,
)
def test_answers_are_checked(server, text, tmp_path, spoilt, said):
    server.spoilt = spoilt
    with pytest.raises(UserError, match=said) as caught:
        slicing.slice_text(text, tmp_path / "slices", counts=server.spec, seq_len=128)
    assert "\n" not in caught.value.line()


def test_another_tokenizer_and_what_is_no_index_are_refused(server, text, tmp_path):
    server.encode = lambda text: [1, 2, 3]
    with pytest.raises(UserError, match="its tokenizer is not recallkit-4k"):
        slicing.slice_text(text, tmp_path / "slices", counts=server.spec)
    with pytest.raises(UserError, match="Invalid index: v4_other"):
        slicing.slice_text(text, tmp_path / "slices", counts=server.spec.replace("mine", "other"))
    for wrong in (
        "infini-gram:",
        "infini-gram:../x",
        "infini-gram:ftp://a#v4",
        "infini-gram:http://me:secret@a#v4",
        "infini-gram:http://a?key=secret#v4",
    ):
        with pytest.raises(UserError, match="not an index") as caught:
            slicing.slice_text(text, tmp_path / "slices", counts=wrong)
        assert "secret" not in caught.value.line()
    assert not (tmp_path / "slices").exists(), "before any text is read"


class Clock:
    """Time that passes in sleep alone."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_requests_to_the_public_service_are_paced(server, text, tmp_path, monkeypatch):
    clock = Clock()
    monkeypatch.setattr(infini_gram, "time", clock)
    slicing.slice_text(text, tmp_path / "own", counts=server.spec, seq_len=128)
    assert clock.now == 0.0
    server.queries.clear()
    address = server.spec.removeprefix("infini-gram:").partition("#")[0]
    monkeypatch.setattr(infini_gram, "_PUBLIC", address)
    monkeypatch.setenv("RECALLKIT_HOME", str(tmp_path / "empty"))
    slicing.slice_text(text, tmp_path / "public", counts="infini-gram:v4_mine", seq_len=128)
    assert len(server.queries) > 100
    assert clock.now == pytest.approx((len(server.queries) - 1) / 10)


def test_an_interruption_does_not_wait_for_the_server(server, text, tmp_path, monkeypatch):
    answered, is_over = Handler.answer, threading.Event()

    def answer(handler, status, content):
        if len(server.queries) == 50:
            os.kill(os.getpid(), signal.SIGINT)
            is_over.wait(60)
        answered(handler, status, content)

    monkeypatch.setattr(Handler, "answer", answer)
    monkeypatch.setattr(infini_gram, "_CHUNK", 20)
    # a process of pytest-xdist ignores it
    handler = signal.signal(
        signal.SIGINT,
        signal.default_int_handler,
    )
    try:
        with pytest.raises(KeyboardInterrupt):
            slicing.slice_text(text, tmp_path / "slices", counts=server.spec, seq_len=128)
    finally:
        signal.signal(signal.SIGINT, handler)
    assert len(server.queries) == 50, "the answer is still to come"
    is_over.set()
    server.queries.clear()
    server.queries += [{}] * 60
    slicing.slice_text(text, tmp_path / "slices", counts=server.spec, seq_len=128)
    assert len(pairs(server.queries)) < 110, "40 of more than 130 are kept"


def test_commands_use_these_labels_or_say_why_not(server, text, tmp_path, run):
    out = tmp_path / "slices"
    assert (
        run(
            "slice",
            text.sources[0],
            "--counts",
            server.spec,
            "--seq-len",
            128,
            "-o",
            out,
        ).returncode
        == 0
    )
    done = run(
        "gap",
        "zoo:attention",
        "zoo:base-conv",
        "--slices",
        out,
        "--full",
        "-o",
        tmp_path / "gap",
    )
    assert done.returncode == 0, done.stderr
    rows = {
        row["slice"]: row
        for row in pl.read_parquet(tmp_path / "gap/by_partition.parquet").to_dicts()
    }
    reply = labels(out)
    assert rows["bigram repeated, rare"]["tokens"] == reply["ar_hit"].sum() > 0
    assert rows["token new, rare"]["tokens"] == 0
    assert "tokens by what the context already contains" not in " ".join(done.stdout.split())
    done = run("gap", "zoo:attention", "zoo:base-conv", "--slices", out, "--slice", "first_rare")
    assert (done.returncode, "it is unknown which tokens are in first_rare" in done.stderr) == (
        1,
        True,
    )
    assert (
        run("report", tmp_path / "gap", "--slices", out, "-o", tmp_path / "page.html").returncode
        == 0
    )
    done = run("intervene", "zoo:attention", "zoo:base-conv", "--slices", out)
    assert (done.returncode, "counts of repeated bigrams only" in done.stderr) == (1, True)
    done = run("score", "control:bigram", "--slices", out, "--counts", server.spec)
    assert (done.returncode, "an index only counts the bigrams of a given text" in done.stderr) == (
        1,
        True,
    )
