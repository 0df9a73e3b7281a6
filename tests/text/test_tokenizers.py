"""Tokenisers: found wherever a user has them, fast only where exact, decoded without loss."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
import time
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers

from recallkit.errors import UserError
from recallkit.text import encoding, tokenizers
from recallkit.text.encoding import call_within, encode_documents, fast_encoder, same_ids
from recallkit.text.records import Document, Position
from recallkit.text.tokenizers import (
    BUILTIN,
    TextTokenizer,
    load_slices_tokenizer,
    load_tokenizer,
    write_tokenizer,
)
from tests.conftest import made_up_texts
from tests.made_tokenizers import NAMES, made


def as_documents(texts: list[str]) -> list[Document]:
    return [Document(text, "s", str(n), Position(0, n)) for n, text in enumerate(texts)]


def test_the_builtin_tokenizer_is_byte_level_with_4096_entries():
    tokenizer = load_tokenizer(None)
    assert (tokenizer.name, tokenizer.vocab_size, tokenizer.end_token_id) == (BUILTIN, 4096, 0)
    assert sum(len(b) == 1 for b in tokenizer.token_bytes) == 256


@settings(max_examples=80)
@given(st.text())
def test_ids_decode_to_the_text(text):
    tokenizer = made("built-in")
    ids, _ = tokenizer.encode([text])
    assert tokenizer.decode([ids]) == [text]
    assert tokenizer.backend.decode(ids.tolist(), skip_special_tokens=False) == text


@settings(max_examples=80)
@given(st.lists(st.text(), min_size=1, max_size=5))
def test_the_fast_path_gives_the_same_ids(texts):
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    assert same_ids(builtin_fast_encoder(), made("built-in").encode, texts)


@cache
def builtin_fast_encoder():
    return fast_encoder(made("built-in"))


@pytest.mark.parametrize("name", ["gpt2.json", "gpt-neox-20b.json"])
def test_the_fast_path_is_exact_on_real_text_and_published_tokenizers(test_data, name):
    pytest.importorskip("gigatoken", reason="the extra `fast` is not installed")
    from recallkit.text.corpus import open_corpus

    tokenizer = load_tokenizer(str(test_data / "tokenizers" / name))
    assert tokenizer.end_token == "<|endoftext|>"
    texts = [
        d.text for d in open_corpus([str(test_data / "corpus" / "valid.jsonl.zst")]).documents()
    ][::7]
    assert same_ids(fast_encoder(tokenizer), tokenizer.encode, texts)


def test_a_fast_path_that_differs_is_noticed_and_not_used(monkeypatch):
    def wrong(tokenizer, notify=None):
        def encode(texts):
            ids, offsets = tokenizer.encode(texts)
            return np.where(ids == ids.max(initial=0), 5, ids), offsets

        return encode

    monkeypatch.setattr(encoding, "fast_encoder", wrong)
    tokenizer, notes = load_tokenizer(None), []
    texts = made_up_texts(5, 50)
    encoded = list(
        encode_documents(
            as_documents(texts),
            tokenizer,
            lambda first: tokenizer.checked_encoder(first, notes.append),
        )
    )
    assert np.array_equal(np.concatenate([e.ids for e in encoded]), tokenizer.encode(texts)[0])
    assert len(notes) == 1
    assert notes[0].endswith(
        "using tokenizers, with which `count` takes about 15 times the CPU time",
    )


def test_batches_keep_documents_in_order(monkeypatch):
    monkeypatch.setattr(encoding, "_BATCH_CHARACTERS", 100)
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


ADDED = {
    "id": 5,
    "content": "ab",
    "single_word": False,
    "lstrip": False,
    "rstrip": False,
    "normalized": False,
    "special": False,
}
END = {**ADDED, "id": 1, "content": "</s>", "special": True}
LETTERS = {
    "version": "1.0",
    "added_tokens": [END],
    "normalizer": None,
    "pre_tokenizer": None,
    "model": {
        "type": "BPE",
        "unk_token": "<unk>",
        "vocab": {
            token: number
            for number, token in enumerate(["<unk>", "</s>", "a", "b", "c", "ab", "bc", "abc"])
        },
        "merges": [["a", "b"], ["b", "c"], ["ab", "c"]],
    },
}
"""A tokenizer of three letters."""


@pytest.mark.parametrize(
    "changed",
    [
        {"model": {"merges": [["b", "c"], ["a", "b"], ["ab", "c"]]}},
        {"model": {"merges": [["a", "b"], ["b", "c"], ["a", "bc"]]}},
        {"model": {"merges": []}},
        {"model": {"vocab": {**LETTERS["model"]["vocab"], "b": 4, "c": 3}}},
        {"model": {"type": "WordLevel", "merges": []}},
        {"normalizer": {"type": "Lowercase"}},
        {
            "pre_tokenizer": {
                "type": "Split",
                "pattern": {"String": "b"},
                "behavior": "Isolated",
                "invert": False,
            }
        },
        {"added_tokens": [END, ADDED]},
    ],
    ids=lambda changed: "-".join([*changed, *changed.get("model", ())]),
)
def test_a_change_that_gives_other_ids_gives_another_digest(tmp_path, changed):
    """A part of the tokenizer each; of a model, compared with one that differs in nothing else."""
    before = LETTERS | (
        {"model": LETTERS["model"] | {"merges": []}} if changed.get("model", {}).get("type") else {}
    )
    after = before | changed | {"model": before["model"] | changed.get("model", {})}
    calls = []
    for settings_of in (before, after):
        (tmp_path / "t.json").write_text(json.dumps(settings_of))
        tokenizer = load_tokenizer(str(tmp_path / "t.json"))
        calls.append(
            (
                [
                    tokenizer.backend.encode(text).ids
                    for text in ("abc", "ab", "bc", "ABC", "cab", "aab")
                ],
                tokenizer.digest,
            )
        )
    (ids, digest), (other_ids, other_digest) = calls
    assert ids != other_ids
    assert digest != other_digest


def test_the_digest_is_not_that_of_how_a_file_is_written(tmp_path):
    tokenizer = made("built-in")
    known = json.loads(tokenizer.backend.to_str())
    unset = {
        "continuing_subword_prefix": "",
        "end_of_word_suffix": "",
        "dropout": 0.0,
        "ignore_merges": False,
    }
    older = {
        name: value
        for name, value in known["model"].items()
        if name not in ("byte_fallback", "fuse_unk", "unk_token")
    }
    older["merges"] = [" ".join(pair) for pair in known["model"]["merges"]]
    padding = {
        "strategy": "BatchLongest",
        "direction": "Right",
        "pad_to_multiple_of": None,
        "pad_id": 0,
        "pad_type_id": 0,
        "pad_token": "x",
    }
    for changed in (
        {"model": {**known["model"], **unset}},
        {"model": older},
        {"padding": padding},
        {"post_processor": None},
    ):
        (tmp_path / "t.json").write_text(json.dumps({**known, **changed}))
        assert load_tokenizer(str(tmp_path / "t.json")).digest == tokenizer.digest
    assert known["model"]["ignore_merges"] is False
    del known["model"]["ignore_merges"]  # as releases wrote it that had no such option
    assert tokenizers._digest_settings(known) == tokenizer.digest


def test_a_model_directory_names_its_end_token(tmp_path):
    word_tokenizer(["?", "stop", "a", "</s>"]).save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "stop"}}))
    assert load_tokenizer(str(tmp_path)).end_token == "stop"
    assert load_tokenizer(str(tmp_path), end_token="a").end_token_id == 2


@pytest.mark.parametrize(
    ("words", "end_token", "message"),
    [(["?", "a"], None, "no end token"), (["?", "</s>"], "<eot>", "no token '<eot>'")],
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


# --------------------------------------------------------------------------- pieces and their bytes


@settings(max_examples=50)
@given(
    st.sampled_from(["built-in", "byte-level", "sentencepiece", "unigram", "bytes"]),
    st.text(alphabet=st.characters(codec="utf-8", exclude_characters="▁")),
)
def test_pieces_are_the_bytes_of_the_text_behind_the_first_space(name, text):
    tokenizer = made(name)
    ids, _ = tokenizer.encode([text])
    inside, _ = tokenizer.continuation.encode([text])
    joined = b"".join(tokenizer.token_bytes[i] for i in ids)
    added = b" " if tokenizer.continuation is not tokenizer and text else b""
    assert joined == added + text.encode() or (joined == text.encode() and text.startswith(" "))
    assert b"".join(tokenizer.token_bytes[i] for i in inside) == text.encode()
    assert tokenizer.decode([inside]) == [
        tokenizer.backend.decode(inside.tolist(), skip_special_tokens=False),
    ]


@pytest.mark.parametrize(
    "name",
    [n for n in NAMES if n not in ("unigram without bytes", "wordpiece")],
)
def test_text_is_counted_without_end_tokens_and_first_spaces(name):
    tokenizer = made(name)
    texts = ["the model", "é recalls", "", "17"]
    stream = [tokenizer.end_token_id]
    for text in texts:
        stream += [*tokenizer.encode([text])[0].tolist(), tokenizer.end_token_id]
    ids, previous = np.array(stream[1:], np.uint32), np.array(stream[:-1], np.uint32)
    # its end token is a byte of text
    written = "".join(texts) if name != "bytes" else "".join(f"{text}\n" for text in texts)
    assert tokenizer.document_text.join(ids, previous) == written.encode()
    assert tokenizer.document_text.lengths(ids, previous).sum() == len(written.encode())


def test_places_of_ids_are_whole_characters_of_the_text_as_it_was():
    wordpiece = made("wordpiece")
    ((ids, stops),) = wordpiece.encode_with_stops(["The Módel\n\n 👩"])
    tokens = [wordpiece.backend.id_to_token(i) for i in ids]
    words = np.flatnonzero([not token.startswith("##") for token in tokens])
    assert [stops[end - 1] for end in [*words[1:], len(ids)]] == [
        3,
        len("The Módel".encode()),
        len("The Módel\n\n 👩".encode()),
    ]
    assert wordpiece.encode_with_stops([]) == []
    # Whole characters, and the spaces that a post-processor would cut off.
    ((_, stops),) = made("byte-level after NFC").encode_with_stops(["the \n\n é"])
    assert stops[-1] == len("the \n\n é".encode())
    assert set(stops.tolist()) <= {1, 2, 3, 4, 5, 6, 7, 9}


# -------------------------------------------------------------------------------------------- bytes


@given(st.lists(st.text()))
def test_ids_of_bytes_are_the_bytes(texts):
    tokenizer = load_tokenizer("bytes")
    ids, offsets = tokenizer.encode(texts)
    assert bytes(ids.tolist()) == "".join(texts).encode()
    assert tokenizer.decode(np.split(ids, offsets[1:-1]) if texts else []) == texts
    # as its tokenizer.json says
    assert TextTokenizer.encode(tokenizer, texts)[0].tolist() == ids.tolist()


def test_bytes_end_documents_with_a_newline_or_any_byte():
    tokenizer = load_tokenizer("bytes")
    described = {
        "name": "bytes",
        "digest": tokenizer.digest,
        "vocab_size": 256,
        "end_token": "\n",
        "end_token_id": 10,
    }
    assert tokenizer.describe() == described
    assert tokenizer.token_bytes == [bytes([n]) for n in range(256)]
    assert load_tokenizer("bytes", end_token=";").end_token_id == ord(";")
    assert load_tokenizer("bytes", end_token="<0xfF>").end_token_id == 255
    for wrong in ("é", "ab", ""):
        with pytest.raises(UserError, match=r"not a single byte; give one ASCII character"):
            load_tokenizer("bytes", end_token=wrong)


# ---------------------------------------------------------------------- beside the slices they made


@pytest.mark.parametrize("name", NAMES)
def test_a_kept_tokenizer_is_loaded_again(tmp_path, name):
    tokenizer = made(name)
    write_tokenizer(tmp_path, tokenizer)
    loaded = load_slices_tokenizer(tmp_path, tokenizer.describe())
    assert loaded.describe() == tokenizer.describe()
    assert type(loaded) is type(tokenizer)
    text = ["the model é 👩"]
    assert same_ids(loaded.encode, tokenizer.encode, text)


def test_without_a_file_bytes_and_the_builtin_tokenizer_are_known_by_name(tmp_path):
    for name in ("bytes", "built-in"):
        assert (
            load_slices_tokenizer(tmp_path, made(name).describe()).describe()
            == made(name).describe()
        )


def test_a_missing_or_another_tokenizer_is_one_line_with_its_remedy(tmp_path):
    with pytest.raises(
        UserError,
        match=r"tokenizer\.json: .*is missing; run the same `recallkit slice` again",
    ):
        load_slices_tokenizer(tmp_path, made("unigram").describe())
    made("sentencepiece").backend.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UserError, match=r"tokenizer\.json: not unigram, .*again"):
        load_slices_tokenizer(tmp_path, made("unigram").describe())


# -------------------------------------------------------------------------------------- time limits


def test_a_call_without_end_is_given_up():
    ended, data = threading.Event(), b"x" * 1_000_000

    def work() -> None:
        while not ended.is_set():
            hashlib.sha256(data)  # without the interpreter's lock, as native code

    with pytest.raises(TimeoutError, match="within 0 s"):
        call_within(0.3, work)
    ended.set()


def test_an_interrupt_is_heard_once_the_call_has_ended():
    """And not before: native code must not come back into a program that is ending."""
    before, ended = signal.signal(signal.SIGINT, signal.default_int_handler), []
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        call_within(60, lambda: ended.append(time.sleep(0.6)))
    signal.signal(signal.SIGINT, before)
    assert ended == [None]
