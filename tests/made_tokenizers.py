"""Small tokenizers of every kind that is translated, trained on made-up text: byte-level,
SentencePiece-like, WordPiece, bytes."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache

from tokenizers import (
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

from recallkit.text.tokenizers import TextTokenizer, load_tokenizer
from tests.conftest import made_up_texts

TEXTS = [
    *made_up_texts(30, 80),
    "naïve café 中文 字符 👩‍👩 e\u0301 and the Model RECALLS a  value\n\n the the",
] * 2
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(
    *, add_prefix_space: bool = False, normalizer: normalizers.Normalizer | None = None
) -> Tokenizer:
    """Byte-level BPE as GPT-2's (with NFC: as GPT-NeoX's, places of spaces cut off by its
    post-processor and all)."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space)
    backend.decoder = decoders.ByteLevel()
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    if normalizer is not None:
        backend.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=380,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=alphabet,
        show_progress=False,
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


def byte_level_with_a_hole() -> Tokenizer:
    """Single bytes, an end token, and an id without a piece, as vocabularies have that were filled
    up to a round number."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(alphabet)} | {"of": 257}, [("o", "f")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(["<|endoftext|>"])
    return backend


def sentencepiece_bpe() -> Tokenizer:
    """BPE on "▁" with single bytes for what it does not know and a space before the text, as Llama
    2's."""
    trained = Tokenizer(models.BPE())
    trained.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    trained.train_from_iterator(
        made_up_texts(30, 80), trainers.BpeTrainer(vocab_size=200, show_progress=False)
    )
    learned = json.loads(trained.to_str())["model"]
    pieces = ["<unk>", "<s>", "</s>", *BYTE_PIECES, *learned["vocab"]]
    merges = [tuple(merge) for merge in learned["merges"]]
    backend = Tokenizer(
        models.BPE(
            {piece: n for n, piece in enumerate(pieces)},
            merges,
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    backend.normalizer = trained.normalizer
    steps = [
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens(["<unk>", "<s>", "</s>"])
    return backend


def unigram(*, byte_fallback: bool) -> Tokenizer:
    """A Unigram model on words that begin with "▁", as T5's; without single bytes it has no ids for
    most characters."""
    backend = Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(made_up_texts(30, 80), trainer)
    pieces = [(piece, score) for piece, score in json.loads(backend.to_str())["model"]["vocab"]]
    pieces += [(piece, -20.0) for piece in BYTE_PIECES] if byte_fallback else []
    backend.model = models.Unigram(pieces, unk_id=0, byte_fallback=byte_fallback)
    backend.decoder = (
        decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
        if byte_fallback
        else decoders.Metaspace()
    )
    return backend


def wordpiece() -> Tokenizer:
    """Lower-case words and their ends, without accents, spaces or control characters, as BERT's."""
    backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=150, special_tokens=["[UNK]", "[SEP]"], show_progress=False
    )
    backend.train_from_iterator(TEXTS, trainer)
    return backend


_MAKERS: dict[str, Callable[[], TextTokenizer]] = {
    "bytes": lambda: load_tokenizer("bytes"),
    "built-in": lambda: load_tokenizer(None),
    "byte-level": lambda: TextTokenizer(byte_level(), "byte-level"),
    "byte-level with a first space": lambda: TextTokenizer(
        byte_level(add_prefix_space=True), "first space"
    ),
    "byte-level after NFC": lambda: TextTokenizer(byte_level(normalizer=normalizers.NFC()), "nfc"),
    "byte-level with a hole": lambda: TextTokenizer(byte_level_with_a_hole(), "hole"),
    "sentencepiece": lambda: TextTokenizer(sentencepiece_bpe(), "sentencepiece"),
    "unigram": lambda: TextTokenizer(unigram(byte_fallback=True), "unigram"),
    "unigram without bytes": lambda: TextTokenizer(
        unigram(byte_fallback=False), "unigram without bytes"
    ),
    "wordpiece": lambda: TextTokenizer(wordpiece(), "wordpiece", end_token="[SEP]"),
}

NAMES = tuple(_MAKERS)
WITH_BYTES = tuple(name for name in NAMES if name != "wordpiece")
"""Those whose pieces have bytes of their own, and so can be a reference."""


@cache
def made(name: str) -> TextTokenizer:
    """The tokenizer of that name, made once."""
    return _MAKERS[name]()
