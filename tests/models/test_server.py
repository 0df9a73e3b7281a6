"""A server's model scores as the model behind it, through limits of its rate, errors in the middle
and dropped connections."""

from __future__ import annotations

import contextlib
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.models import server
from recallkit.models.loading import identify_model, load_model
from recallkit.models.plan import ModelPlan
from recallkit.models.spec import ModelSpec
from recallkit.scoring import score_path
from recallkit.text import connection, json_server
from tests.models.completions_server import Server
from tests.models.test_hf import direct, ragged


@pytest.fixture(scope="module")
def server_of_llama(tiny_model) -> Iterator[Server]:
    server = Server(tiny_model("llama"))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture
def serve(server_of_llama) -> Callable[..., str]:
    """Serves the tiny llama with these settings, and gives its spec."""

    def serve(**settings: object) -> str:
        server_of_llama.set(**settings)
        return f"openai:http://127.0.0.1:{server_of_llama.server_port}/v1#tiny"

    return serve


def plan(spec: str) -> ModelPlan:
    return ModelPlan(ModelSpec(spec), 4096)


@pytest.mark.parametrize(
    "settings",
    [{}, {"refuses_no_tokens": True}, {"texts": True}],
    ids=lambda s: next(iter(s), "like vLLM"),
)
def test_scores_are_the_models_own(serve, server_of_llama, tiny_model, settings):
    ids, offsets = ragged([33, 2, 1, 17], 4096)
    # Also tokens that are first, and among the first: those that the model would predict.
    _, best, _ = direct(tiny_model("llama"), ids[:33], np.array([0, 33]))
    ids[5:20:3] = best[4:19:3]
    nll, argmax, rank = direct(tiny_model("llama"), np.delete(ids, 35), np.array([0, 33, 35, 52]))
    scores = load_model(plan(serve(**settings))).score(ids, offsets)
    np.testing.assert_allclose(scores.nll, nll, rtol=0, atol=1e-5)
    assert (scores.rank == np.where(rank < server.TOP - 1, rank, -1)).all()
    assert {0, -1} <= set(scores.rank.tolist())
    assert (
        scores.argmax == (np.where(rank == 0, argmax, -1) if settings.get("texts") else argmax)
    ).all()
    for content in server_of_llama.requested:
        assert content["path"] == "/v1/completions"
        assert content["key"] is None


def test_what_passes_is_tried_again(serve, server_of_llama, tiny_model, monkeypatch):
    waited = []
    monkeypatch.setattr(connection, "sleep", waited.append)
    model = load_model(plan(serve(faults=[None, 429, 500, "drop", 503, None, 500])))
    for seed in (0, 1):
        ids, offsets = ragged([33, 17], 4096, seed)
        np.testing.assert_allclose(
            model.score(ids, offsets).nll,
            direct(tiny_model("llama"), ids, offsets)[0],
            rtol=0,
            atol=1e-5,
        )
    assert waited == [1, 2, 4, 8, 1], "ever longer, and anew for each request"
    assert [content["fault"] for content in server_of_llama.requested] == [
        None,
        429,
        500,
        "drop",
        503,
        None,
        500,
        None,
    ]


def test_what_does_not_pass_is_one_line(serve, monkeypatch):
    waited = []
    monkeypatch.setattr(connection, "sleep", waited.append)
    model = load_model(plan(serve(faults=[None, *[500] * 8, 400])))
    ids, offsets = ragged([9], 4096)
    with pytest.raises(
        UserError,
        match=r"it answers 500 \(.*in the middle.*\), after 8 tries; check the URL",
    ) as caught:
        model.score(ids, offsets)
    assert "\n" not in caught.value.line()
    assert waited == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(UserError, match=r"it answers 400 \(.*in the middle.*\); check the URL"):
        model.score(ids, offsets)
    assert len(waited) == 7, "it was tried again in vain"


def test_a_server_that_is_down_is_told_at_once_and_given_up_soon(run, few_slices, monkeypatch):
    waited = []
    monkeypatch.setattr(connection, "sleep", waited.append)
    done = run("score", "openai:http://127.0.0.1:9/v1#tiny", "--slices", few_slices)
    assert (done.returncode, waited) == (1, [1, 2, 4])
    lines, *_, last = done.stderr.splitlines()
    assert lines.endswith("[Errno 111] Connection refused); trying again")
    assert (
        "it cannot be reached or read ([Errno 111] Connection refused), after 4 tries; check the "
        "URL"
    ) in last


def test_a_host_that_takes_no_connection_is_not_waited_for(monkeypatch):
    """Its queue is full: to those that connect it says nothing."""
    monkeypatch.setattr(connection, "sleep", lambda seconds: None)
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 0.1)
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as deaf,
        contextlib.ExitStack() as waiting,
    ):
        for _ in range(2):
            client = waiting.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(deaf.getsockname())
        begun = time.monotonic()
        with pytest.raises(
            UserError,
            match=r"it cannot be reached or read \(timed out\), after 4 tries",
        ):
            load_model(plan(f"openai:http://127.0.0.1:{deaf.getsockname()[1]}/v1#tiny"))
        assert time.monotonic() - begun < 60, "an answer may take ten times as long"


def test_no_other_host_is_asked(serve, server_of_llama):
    with pytest.raises(UserError, match=r"it answers 307 \(a redirection, which is not followed\)"):
        load_model(plan(serve(faults=["redirect"] * 2)))
    assert {content["path"] for content in server_of_llama.requested} == {"/v1/completions"}


def test_servers_that_cannot_score_are_one_line(serve):
    with pytest.raises(
        UserError,
        match=r"it gives no log probabilities of the prompt \(echo and logprobs\)",
    ):
        load_model(plan(serve(no_echo=True)))
    spec = serve()
    with pytest.raises(UserError, match=r"it answers 404 \(.*no model other.*\)"):
        load_model(plan(spec.replace("#tiny", "#other")))


def item(**changes: object) -> Callable[..., object]:
    """Changes what an answer says of each prompt: a value in place of it, or a function of it."""

    def spoil(content):
        for choice in content["choices"]:
            for name, change in changes.items():
                into = choice if name in choice else choice["logprobs"]
                into[name] = change(into[name]) if callable(change) else change
        return content

    return spoil


def put_before(value):
    return lambda values: [None, value, *values[1:]]


SPOILT = {
    "a token before the prompt": item(
        tokens=put_before("token_id:1"),
        token_logprobs=put_before(-1.0),
        top_logprobs=put_before({}),
    ),
    "a hidden token before it": item(token_logprobs=[-1.0, -1.0]),
    "another length of one list": item(top_logprobs=[None]),
    "other tokens": item(tokens=["token_id:0", "token_id:7"]),
    "tokens that are none": item(tokens=[0, 0]),
    "a positive log probability": item(token_logprobs=[None, 0.5]),
    "a boolean": item(token_logprobs=[None, False]),
    "a text": item(token_logprobs=[None, "-1"]),
    "not a number": item(token_logprobs=[None, float("nan")]),
    "an infinite one": item(token_logprobs=[None, float("-inf")]),
    "an endless integer": item(token_logprobs=[None, -(10**400)]),
    "an object in place of a list": item(token_logprobs={"0": None, "1": -1.0}),
    "a number in place of a list": item(token_logprobs=2),
    "a list of alternatives": item(top_logprobs=[None, [["token_id:0", -1.0]]]),
    "an alternative that is no number": item(top_logprobs=[None, {"token_id:3": "x"}]),
    "logprobs that are a list": item(logprobs=[1, 2]),
    "the number of another prompt": item(index=1),
    "a number of a prompt that is none": item(index="0"),
    "choices that are none": lambda _: {"choices": [3]},
    "choices that are an object": lambda _: {"choices": {"0": {}}},
    "no choices": lambda _: {},
}


@pytest.mark.parametrize("name", SPOILT)
def test_what_is_not_the_log_probabilities_of_the_prompt_is_one_line(serve, name):
    with pytest.raises(
        UserError,
        match=r"^openai:http://.*#tiny: (it|its|.* is not a log probability).*; check the URL",
    ):
        load_model(plan(serve(spoil=SPOILT[name])))


def test_texts_that_are_those_of_other_tokens_are_noticed(serve):
    model = load_model(plan(serve(texts=True)))
    ids, offsets = ragged([33], 8)
    model.score(ids, offsets)
    serve(texts=True, spoil=item(tokens=lambda tokens: ["<s>", *tokens[:-1]]))
    with pytest.raises(UserError, match="its tokens are not those of the prompt"):
        model.score(ids, offsets)


def test_a_rounded_log_probability_of_certainty_is_no_negative_nll(serve):
    model = load_model(plan(serve(spoil=item(token_logprobs=[None, 1e-7]))))
    assert model.score(*ragged([2], 4096)).nll.tolist() == [0]


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"spoil": lambda _: b" " * 200_000}, "an answer of more than 102,048 bytes"),
        ({"faults": ["drip"] * 2}, "no complete answer within 0 s"),
        (
            {"spoil": lambda _: b"[" * 100_000},
            r"it cannot be reached or read \(.*recursion.*\), after 8 tries",
        ),
    ],
    ids=["long", "slow", "deep"],
)
def test_an_answer_without_end_is_one_line(serve, monkeypatch, settings, problem):
    monkeypatch.setattr(connection, "sleep", lambda seconds: None)
    monkeypatch.setattr(server, "_BYTES", 100_000)
    monkeypatch.setattr(json_server, "_SECONDS", 0.3 if "faults" in settings else 60)
    with pytest.raises(UserError, match=problem):
        load_model(plan(serve(**settings)))


def test_the_key_is_sent_where_it_is_set(serve, monkeypatch):
    spec = serve(key="secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(
        UserError,
        match=r"it answers 401 \(.*no such key: None.*\); check .*RECALLKIT_API_KEY",
    ):
        load_model(plan(spec))
    monkeypatch.setenv("RECALLKIT_API_KEY", "secret\n")
    assert load_model(plan(spec)).vocab_size == 4096
    monkeypatch.setenv("RECALLKIT_API_KEY", "sec\nret")
    with pytest.raises(UserError, match="RECALLKIT_API_KEY: characters that no key has"):
        load_model(plan(spec))


@pytest.mark.parametrize("log", [(), ("--log-json",)], ids=["message", "event"])
def test_keys_and_passwords_are_not_printed(serve, run, few_slices, monkeypatch, log):
    monkeypatch.setenv("RECALLKIT_API_KEY", "sk-0123456789")
    spec = serve(key="another")
    done = run(*log, "score", spec, "--slices", few_slices)
    assert done.returncode == 1
    assert "no such key: Bearer ***" in done.stderr
    assert "0123456789" not in done.stdout + done.stderr
    done = run(*log, "score", spec.replace("://", "://me:pass%word@"), "--slices", few_slices)
    assert done.returncode == 1
    assert "openai:http://***@127.0.0.1" in done.stderr
    assert (
        "a user or a password in a URL; give the server's key in RECALLKIT_API_KEY" in done.stderr
    )
    assert "pass%word" not in done.stdout + done.stderr


def test_the_context_is_what_the_server_tells(serve):
    assert load_model(plan(serve(max_model_len=128))).max_length == 127
    assert load_model(plan(serve(max_model_len=128, refuses_no_tokens=True))).max_length == 126
    assert load_model(plan(serve())).max_length is None


def test_identity_is_the_url_and_the_name():
    one, other, port = (
        identify_model(plan(f"openai:http://h:{port}/v1#{name}"))
        for port, name in ((1, "a"), (1, "b"), (2, "a"))
    )
    assert len({one, other, port}) == 3
    assert (
        identify_model(plan("openai:http://h:1/v1/completions#a"))
        == identify_model(plan("openai:http://h:1/v1/#a"))
        == one
    )


@pytest.mark.parametrize(
    "spec",
    [
        "openai:",
        "openai:http://h/v1",
        "openai:h#a",
        "openai:file:///etc/passwd#a",
        "openai:http://#a",
        "openai:http://[h#a",
        "openai:http://h:p#a",
    ],
)
def test_other_names_are_one_line(spec):
    with pytest.raises(
        UserError,
        match="not openai:URL#MODEL; for example openai:http://localhost:8000/v1#NAME",
    ):
        identify_model(plan(spec))


def test_the_command_scores_a_server(serve, run, few_slices, tiny_model, tmp_path):
    """From the command line to the table, beside the model itself."""
    import polars as pl

    spec = serve(faults=[None, None, 500])
    slices = shutil.copytree(few_slices, tmp_path / "slices")
    done = run("score", spec, tiny_model("llama"), "--slices", slices)
    assert done.returncode == 0, done.stderr
    assert "ranks from 4 on are unknown" in done.stderr
    tables = [
        pl.read_parquet(score_path(slices, str(model))) for model in (spec, tiny_model("llama"))
    ]
    np.testing.assert_allclose(tables[0]["nll"], tables[1]["nll"], rtol=0, atol=1e-5)
