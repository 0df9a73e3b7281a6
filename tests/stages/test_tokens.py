"""Tokenisers: found wherever a user has them, fast only where exact, decoded without loss."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from recallkit.errors import UserError
from recallkit.records import Document, Position
from recallkit.stages import tokens
from recallkit.stages.tokens import EMBEDDED, encode_documents, fast_encoder, load_tokenizer, same_ids
from tests.conftest import made_up_texts


def as_documents(texts: list[str]) -> list[Document]:
    return [Document(text, "s", str(n), Position(0, n)) for n, text in enumerate(texts)]


def test_the_embedded_tokenizer_is_byte_level_with_4096_entries():
    tokenizer = load_tokenizer(None)
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.end_token_id) == (EMBEDDED, 4096, 0)
    assert sum(len(b) == 1 for b in tokenizer.token_bytes) == 256


@settings(max_examples=200, deadline=None)
@given(st.text())
def test_ids_decode_to_the_text(text):
    tokenizer = load_tokenizer(None)
    ids, _ = tokenizer.encode([text])
    assert tokenizer.decode([ids]) == [text]
    assert tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False) == text


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_the_fast_path_gives_the_same_ids(texts):
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    tokenizer = load_tokenizer(None)
    assert same_ids(fast_encoder(tokenizer), tokenizer.encode, texts)


@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-20b.json"])
def test_the_fast_path_is_exact_on_real_text_and_published_tokenizers(test_data, name):
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    from recallkit.stages.corpus import open_corpus

    tokenizer = load_tokenizer(str(test_data / "tokenizers" / name))
    assert tokenizer.end_token == "<|endoftext|>"
    texts = [d.text for d in open_corpus([str(test_data / "corpus" / "valid.jsonl.zst")]).documents()][::7]
    assert same_ids(fast_encoder(tokenizer), tokenizer.encode, texts)


def test_a_fast_path_that_differs_is_noticed_and_not_used(monkeypatch):
    def wrong(tokenizer, notify=None):
        def encode(texts):
            ids, offsets = tokenizer.encode(texts)
            return np.where(ids == ids.max(initial=0), 5, ids), offsets

        return encode

    monkeypatch.setattr(tokens, "fast_encoder", wrong)
    tokenizer, notes = load_tokenizer(None), []
    texts = made_up_texts(5, 50)
    encoded = list(encode_documents(as_documents(texts), tokenizer, notify=notes.append))
    assert np.array_equal(np.concatenate([e.ids for e in encoded]), tokenizer.encode(texts)[0])
    assert len(notes) == 1
    assert "using tokenizers" in notes[0]


def test_batches_keep_documents_in_order(monkeypatch):
    monkeypatch.setattr(tokens, "_BATCH_CHARACTERS", 100)
    tokenizer = load_tokenizer(None)
    texts = ["", *made_up_texts(30, 40), ""]
    encoded = list(encode_documents(as_documents(texts), tokenizer))
    assert len(encoded) > 3
    split = [ids.tolist() for e in encoded for ids in np.split(e.ids, e.offsets[1:-1])]
    assert tokenizer.decode([np.array(i, np.int64) for i in split]) == texts
    assert [p.record for e in encoded for p in e.positions] == list(range(len(texts)))
    assert all(e.ids.dtype == np.uint16 for e in encoded)


def word_tokenizer(words: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({w: i for i, w in enumerate(words)}, unk_token=words[0]))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


def test_the_digest_follows_what_decides_ids(tmp_path):
    word_tokenizer(["?", "</s>", "a"]).save(str(tmp_path / "one.json"))
    word_tokenizer(["?", "</s>", "a"]).save(str(tmp_path / "two.json"), pretty=False)
    word_tokenizer(["?", "</s>", "b"]).save(str(tmp_path / "three.json"))
    one, two, three = (load_tokenizer(str(tmp_path / f"{n}.json")).digest for n in ("one", "two", "three"))
    assert one == two != three


def test_a_model_directory_names_its_end_token(tmp_path):
    word_tokenizer(["?", "stop", "a", "</s>"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "stop"}}))
    assert load_tokenizer(str(tmp_path)).end_token == "stop"
    assert load_tokenizer(str(tmp_path), end_token="a").end_token_id == 2


@pytest.mark.parametrize(
    ("words", "end_token", "message"), [(["?", "a"], None, "no end token"), (["?", "</s>"], "<eot>", "no token '<eot>'")]
)
def test_a_missing_end_token_is_one_line(tmp_path, words, end_token, message):
    word_tokenizer(words).save(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match=message):
        load_tokenizer(str(tmp_path / "t.json"), end_token=end_token)


def test_a_file_that_is_no_tokenizer_is_one_line(tmp_path):
    (tmp_path / "t.json").write_text("{}")
    with pytest.raises(UserError, match=r"t\.json"):
        load_tokenizer(str(tmp_path / "t.json"))
    with pytest.raises(UserError, match="no tokenizer found"):
        load_tokenizer(str(tmp_path))
