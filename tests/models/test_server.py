"""A server's model scores as the model behind it, through limits of its rate, errors in the middle and dropped connections."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from recallkit.errors import UserError
from recallkit.models import server
from recallkit.models.loading import identify_model, load_model
from recallkit.models.protocol import ModelRequest
from recallkit.scoring import score_path
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


def request(spec: str) -> ModelRequest:
    return ModelRequest(spec, 4096)


@pytest.mark.parametrize("settings", [{}, {"refuses_no_tokens": True}, {"texts": True}], ids=lambda s: next(iter(s), "like vLLM"))
def test_scores_are_the_models_own(serve, server_of_llama, tiny_model, settings):
    ids, offsets = ragged([33, 2, 1, 17], 4096)
    # Also tokens that are first, and among the first: those that the model would predict.
    _, best, _ = direct(tiny_model("llama"), ids[:33], np.array([0, 33]))
    ids[5:20:3] = best[4:19:3]
    nll, argmax, rank = direct(tiny_model("llama"), np.delete(ids, 35), np.array([0, 33, 35, 52]))
    scores = load_model(request(serve(**settings))).score(ids, offsets)
    np.testing.assert_allclose(scores.nll, nll, rtol=0, atol=1e-5)
    assert (scores.rank == np.where(rank < server.TOP - 1, rank, -1)).all()
    assert {0, -1} <= set(scores.rank.tolist())
    assert (scores.argmax == (np.where(rank == 0, argmax, -1) if settings.get("texts") else argmax)).all()
    for content in server_of_llama.asked:
        assert content["path"] == "/v1/completions"
        assert content["key"] is None


def test_what_passes_is_tried_again(serve, server_of_llama, tiny_model, monkeypatch):
    waited = []
    monkeypatch.setattr(server, "_sleep", waited.append)
    model = load_model(request(serve(faults=[None, 429, 500, "drop", 503, None, 500])))
    for seed in (0, 1):
        ids, offsets = ragged([33, 17], 4096, seed)
        np.testing.assert_allclose(model.score(ids, offsets).nll, direct(tiny_model("llama"), ids, offsets)[0], rtol=0, atol=1e-5)
    assert waited == [1, 2, 4, 8, 1], "ever longer, and anew for each request"
    assert [content["fault"] for content in server_of_llama.asked] == [None, 429, 500, "drop", 503, None, 500, None]


def test_what_does_not_pass_is_one_line(serve, monkeypatch):
    waited = []
    monkeypatch.setattr(server, "_sleep", waited.append)
    model = load_model(request(serve(faults=[None, *[500] * 8, 400])))
    ids, offsets = ragged([9], 4096)
    with pytest.raises(UserError, match=r"it answers 500 \(.*in the middle.*\), after 8 tries; check the URL") as caught:
        model.score(ids, offsets)
    assert "\n" not in caught.value.line()
    assert waited == [1, 2, 4, 8, 16, 32, 64]
    with pytest.raises(UserError, match=r"it answers 400 \(.*in the middle.*\); check the URL"):
        model.score(ids, offsets)
    assert len(waited) == 7, "it was tried again in vain"
    with pytest.raises(UserError, match=r"it cannot be reached or read \(.*refused.*\), after 8 tries"):
        load_model(request("openai:http://127.0.0.1:9/v1#tiny"))


def test_no_other_host_is_asked(serve, server_of_llama):
    with pytest.raises(UserError, match=r"it answers 307 \(a redirection, which is not followed\)"):
        load_model(request(serve(faults=["redirect"] * 2)))
    assert {content["path"] for content in server_of_llama.asked} == {"/v1/completions"}


def test_servers_that_cannot_score_are_one_line(serve):
    with pytest.raises(UserError, match=r"it gives no log probabilities of the prompt \(echo and logprobs\)"):
        load_model(request(serve(no_echo=True)))
    spec = serve()
    with pytest.raises(UserError, match=r"it answers 404 \(.*no model other.*\)"):
        load_model(request(spec.replace("#tiny", "#other")))


def test_the_key_is_sent_where_it_is_set(serve, monkeypatch):
    spec = serve(key="secret")
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with pytest.raises(UserError, match=r"it answers 401 \(.*no such key.*\); check .*RECALLKIT_API_KEY") as caught:
        load_model(request(spec))
    assert "secret" not in str(caught.value)
    monkeypatch.setenv("RECALLKIT_API_KEY", "secret")
    assert load_model(request(spec)).vocab_size == 4096


def test_the_context_is_what_the_server_tells(serve):
    assert load_model(request(serve(max_model_len=128))).max_length == 127
    assert load_model(request(serve(max_model_len=128, refuses_no_tokens=True))).max_length == 126
    assert load_model(request(serve())).max_length is None


def test_identity_is_the_url_and_the_name():
    one, other, port = (identify_model(request(f"openai:http://h:{port}/v1#{name}")) for port, name in ((1, "a"), (1, "b"), (2, "a")))
    assert len({one, other, port}) == 3
    assert identify_model(request("openai:http://h:1/v1/completions#a")) == identify_model(request("openai:http://h:1/v1/#a")) == one


@pytest.mark.parametrize("spec", ["openai:", "openai:http://h/v1", "openai:h#a", "openai:file:///etc/passwd#a", "openai:http://#a"])
def test_other_names_are_one_line(spec):
    with pytest.raises(UserError, match="not openai:URL#MODEL; for example openai:http://localhost:8000/v1#NAME"):
        identify_model(request(spec))


def test_the_command_scores_a_server(serve, run, small_slices, tiny_model, tmp_path):
    """From the command line to the table, beside the model itself."""
    import polars as pl

    spec = serve(faults=[None, None, 500])
    slices = shutil.copytree(small_slices, tmp_path / "slices")
    done = run("score", spec, tiny_model("llama"), "--slices", slices)
    assert done.returncode == 0, done.stderr
    assert "ranks from 4 on are not known" in done.stderr
    tables = [pl.read_parquet(score_path(slices, str(model))) for model in (spec, tiny_model("llama"))]
    np.testing.assert_allclose(tables[0]["nll"], tables[1]["nll"], rtol=0, atol=1e-5)
