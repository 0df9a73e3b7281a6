"""Tokenizers that lose a part of a text: what they lose is refused where their ids are counted or
sliced, what they keep is read."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

import recallkit
from recallkit.errors import UserError
from recallkit.text.tokenizers import load_tokenizer
from recallkit.text.vocabulary import byte_backend, byte_level_alphabet
from tests.made_tokenizers import made

LETTERS = {letter: number for number, letter in enumerate("abcdefghijklmnopqrstuvwxyz ▁")}
GOOD = "a text of letters"


def of_letters(normalizer: normalizers.Normalizer | None = None, **options: object) -> Tokenizer:
    """Single letters, without an entry for anything else."""
    entries = LETTERS if "unk_token" not in options else {**LETTERS, "<unk>": len(LETTERS)}
    backend = Tokenizer(models.BPE(entries, [], **options))
    backend.pre_tokenizer, backend.decoder = (
        pre_tokenizers.Metaspace(prepend_scheme="never"),
        decoders.Metaspace(prepend_scheme="never"),
    )
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return backend


def of_bytes(*added: AddedToken) -> Tokenizer:
    backend = byte_backend()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True), *added])
    return backend


def of_words() -> Tokenizer:
    """Words, and an entry for every byte, which is of no use to other words."""
    pieces = [*byte_level_alphabet(), "Ġtext", "Ġof", "Ġletters", "<unk>"]
    entries = {piece: number for number, piece in enumerate(pieces)}
    backend = Tokenizer(models.WordLevel(entries, "<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken("<|endoftext|>", special=True)])
    return backend


def without_outer_spaces() -> Tokenizer:
    backend = of_bytes()
    backend.normalizer = normalizers.Strip()
    return backend


LOSING = {
    "an unknown token": (
        of_letters(unk_token="<unk>"),
        "漢",
        "'漢 and more' becomes '<unk> and more'",
    ),
    "no entry at all": (of_letters(), "漢", "'漢 and more' becomes ' and more'"),
    "lower case": (of_letters(normalizers.Lowercase()), "B", "'B and more' becomes 'b and more'"),
    "accents": (
        of_letters(normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()])),
        "é",
        "'é and more' becomes 'e and more'",
    ),
    "spaces": (of_letters(normalizers.Replace("  ", " ")), " ", "' and more' becomes 'and more'"),
    "spaces beside an added token": (
        of_bytes(AddedToken("<mask>", lstrip=True)),
        "  <mask>",
        "'␣␣ <mask> and more' becomes '<mask> and more'",
    ),
}


@pytest.mark.parametrize("kind", LOSING)
def test_what_a_tokenizer_loses_is_refused_with_its_document(tmp_path: Path, kind: str) -> None:
    backend, lost, message = LOSING[kind]
    path = tmp_path / "letters.json"
    backend.save(str(path))
    texts = [{"text": GOOD}, {"text": f"then {lost} and more", "id": "second"}]
    for act in (recallkit.count, recallkit.slice):
        with pytest.raises(UserError) as caught:
            act(texts=texts, out=tmp_path / "out", tokenizer=path)
        assert f"second: letters.json loses text: {message}" in caught.value.line()
        assert "use a tokenizer with an entry for every byte" in caught.value.line()
    assert (
        recallkit.count(texts=texts[:1], out=tmp_path / "good.duckdb", tokenizer=path).frame[
            "num_tokens"
        ][0]
        == len(GOOD) + 1
    )


@pytest.mark.parametrize(
    "name",
    ["byte-level after NFC", "sentencepiece", "unigram", "byte-level with a first space"],
)
def test_tokenizers_with_every_byte_lose_nothing(name: str) -> None:
    assert made(name).keeps_text
    assert load_tokenizer("bytes").keeps_text
    assert load_tokenizer(None).keeps_text


def test_the_unknown_token_itself_is_text(tmp_path: Path) -> None:
    backend = of_letters(unk_token="<unk>")
    backend.add_special_tokens(["<unk>"])
    backend.save(str(tmp_path / "letters.json"))
    assert (
        recallkit.count(
            texts=["a <unk> b"],
            out=tmp_path / "a.duckdb",
            tokenizer=tmp_path / "letters.json",
        ).frame["num_tokens"][0]
        == 6
    )


@pytest.mark.parametrize(
    ("backend", "text", "message"),
    [
        (without_outer_spaces(), "    code", "'␣␣␣␣code' becomes 'code'"),
        (without_outer_spaces(), " code", None),
        (of_words(), "a word", "' word' becomes '<unk>'"),
        (of_words(), "a text of letters", None),
        (of_letters(), "a▁b", None),
    ],
)
def test_spaces_and_words(
    tmp_path: Path,
    backend: Tokenizer,
    text: str,
    message: str | None,
) -> None:
    path = tmp_path / "own.json"
    backend.save(str(path))
    refusal = pytest.raises(UserError, match=message)
    with contextlib.nullcontext() if message is None else refusal:
        recallkit.count(texts=[text], out=tmp_path / "counts.duckdb", tokenizer=path)
