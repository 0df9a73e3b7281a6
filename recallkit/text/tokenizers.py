"""Tokenizers: opened wherever a user has them, known by a digest of what decides ids, decoded
without loss."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import re
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from recallkit import config
from recallkit.display import console
from recallkit.errors import UserError
from recallkit.storage.given_files import check_file, check_files_in
from recallkit.storage.hashing import digest_json
from recallkit.storage.hub import hub_file, hub_file_if_any
from recallkit.storage.whole_files import replacing
from recallkit.text.encoding import checked_encoder, fails, limited
from recallkit.text.records import Vocabulary
from recallkit.text.special_tokens import (
    BEGIN_OF_GEMMA,
    NOTHING_SAID,
    TOKENIZER_CONFIG,
    Configuration,
    Prefix,
    ends_text,
    files_in,
    find_end,
    find_prefix,
    read_configuration,
)
from recallkit.text.vocabulary import (
    DocumentText,
    PieceTable,
    byte_backend,
    byte_level_alphabet,
    gives_text_once,
    is_byte_level,
    keeps_text,
    longest_growth,
    piece_bytes,
    without_first_space,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import tokenizers

    from recallkit.text.encoding import Encoder

BUILTIN = "recallkit-4k"
"""Name of the tokenizer shipped with the package: byte-level BPE, 4,096 entries, trained by
examples/01_train_tokenizer.py."""

BYTES = "bytes"
"""Name of the vocabulary of 256 bytes, whose ids are the bytes of UTF-8."""

TOKENIZER_FILE = "tokenizer.json"
_MOST_TRIED = 8
"""Pieces that are tried for a text that has ids, beside "a"."""
_DECIDE_NO_ID = ("version", "truncation", "padding", "post_processor", "decoder", "model")
"""Parts of a tokenizer.json that are not in the digest: the last has rules of its own, of a
post-processor see `_check`."""
_DIGESTED_APART = ("type", "vocab", "merges", "dropout")
_AFFIXES = ("continuing_subword_prefix", "end_of_word_suffix")
"""Options for which no text is the same as none at all."""


class TextTokenizer:
    """A tokenizer with what the pipeline needs: flat ids, an end token, exact decoding, a digest.

    `name` is for display; `digest` identifies the mapping from text to ids (vocabulary, merges,
    normaliser, splitting, options of the model). Raises UserError if no end token is found and none
    is given, for a tokenizer that would need absurd amounts of memory, and for one whose ids are
    not those of the text: merges dropped at random, a template that repeats the text or leaves it
    out. All methods that encode or decode raise UserError if that takes far too long
    (config.ENCODING_SECONDS) or the library fails.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        name: str,
        *,
        end_token: str | None = None,
        configuration: Configuration = NOTHING_SAID,
    ) -> None:
        backend.no_truncation()
        backend.no_padding()
        self.backend = backend
        self.name = name
        ids = backend.get_vocab(with_added_tokens=True)
        self.vocab_size: int = max(ids.values(), default=-1) + 1
        _check(backend, name, self.vocab_size)
        self.end_token, self.end_reason = find_end(backend, configuration, name, end_token)
        self.end_token_id: int = ids[self.end_token]
        self._configuration = configuration

    @cached_property
    def digest(self) -> str:
        """Digest of everything that determines ids, independent of the release of `tokenizers` that
        wrote the file."""
        return self._digest_and_settings[0]

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids (uint32) and offsets (int64, one more than texts), by the reference
        implementation."""
        encodings = self._encoded(self.backend.encode_batch_fast, texts)
        lengths = np.fromiter((len(e) for e in encodings), dtype=np.int64, count=len(encodings))
        offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths)])
        ids = np.empty(int(offsets[-1]), dtype=np.uint32)
        for encoding, start, stop in zip(encodings, offsets[:-1], offsets[1:], strict=True):
            ids[start:stop] = encoding.ids
        return ids, offsets

    def encode_with_stops(self, texts: Sequence[str]) -> list[tuple[np.ndarray, np.ndarray]]:
        """For each text its ids (uint32) and where each of them ends in the text's UTF-8 (int64),
        by the reference implementation.

        These are the offsets that `tokenizers` tracks through normalisation: at whole characters,
        never decreasing.
        """
        encodings = self._encoded(self._tracking_backend.encode_batch, texts)
        encoded = []
        for text, encoding in zip(texts, encodings, strict=True):
            stops = [stop for _, stop in encoding.offsets]
            encoded.append((np.array(encoding.ids, np.uint32), _stops_in_bytes(text, stops)))
        return encoded

    def _encoded(self, encode_batch: Callable[..., Any], texts: Sequence[str]) -> list[Any]:
        """The encodings of texts without special tokens, by a method of the library."""
        copied = list(texts)
        call = functools.partial(encode_batch, copied, add_special_tokens=False)
        return list(self._limited(call, sum(map(len, copied))))

    @cached_property
    def _tracking_backend(self) -> tokenizers.Tokenizer:
        """The backend without its post-processor, which may trim spaces off the offsets of ids."""
        from tokenizers import Tokenizer

        return Tokenizer.from_str(json.dumps({**self._settings(), "post_processor": None}))

    def _settings(self) -> dict[str, Any]:
        """The contents of tokenizer.json; large if the vocabulary is, so they are not kept."""
        settings: dict[str, Any] = json.loads(self.backend.to_str())
        return settings

    @cached_property
    def _digest_and_settings(self) -> tuple[str, dict[str, Any]]:
        """The digest, and the settings without the vocabulary: read once for both."""
        settings = self._settings()
        small = {
            **settings,
            "model": {k: v for k, v in settings["model"].items() if k not in ("vocab", "merges")},
        }
        return _digest_settings(settings), small

    @property
    def _small_settings(self) -> dict[str, Any]:
        return self._digest_and_settings[1]

    @cached_property
    def token_bytes(self) -> list[bytes] | None:
        """The bytes of every id if pieces have bytes of their own (vocabulary.piece_bytes), else
        None."""
        tokens = self.backend.get_added_tokens_decoder()
        added = {index: token.content for index, token in tokens.items()}
        return piece_bytes(
            self._small_settings,
            self.backend.get_vocab(with_added_tokens=False),
            added,
        )

    @cached_property
    def piece_table(self) -> PieceTable | None:
        """`token_bytes` for many ids at once."""
        return None if self.token_bytes is None else PieceTable(self.token_bytes)

    @cached_property
    def document_text(self) -> DocumentText | None:
        """The text that ids represent in a stream of documents if pieces have bytes of their own,
        else None."""
        if self.token_bytes is None:
            return None
        symbol = None if self.ends_with_text() else self.end_token_id
        return DocumentText(self.token_bytes, symbol, adds_space=self.continuation is not self)

    def ends_with_text(self) -> bool:
        """Whether the end token is also a piece that ordinary text is encoded with."""
        added = self.backend.get_added_tokens_decoder()
        return self.end_token_id not in added and self.encode([self.end_token])[0].tolist() == [
            self.end_token_id,
        ]

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """What a reader of ids knows of this tokenizer."""
        added = self.backend.get_added_tokens_decoder().items()
        pads = [i for i, token in added if token.special and "pad" in token.content.lower()]
        pads += [i for i, token in added if token.content == self._configuration.pad]
        ends_with_text, frame = self.ends_with_text(), (*pads, *self.prefix.ids)
        return Vocabulary(self.name, self.vocab_size, self.end_token_id, ends_with_text, frame)

    @cached_property
    def keeps_text(self) -> bool:
        """Whether it is known to encode every text without loss (vocabulary.keeps_text)."""
        return keeps_text(self._small_settings, self.backend.get_vocab(with_added_tokens=False))

    @cached_property
    def continuation(self) -> TextTokenizer:
        """The tokenizer for text that continues a document: this one, unless it puts a space before
        the first word."""
        from tokenizers import Tokenizer

        if without_first_space(self._small_settings) == self._small_settings:
            return self
        settings = without_first_space(self._settings())
        return TextTokenizer(
            Tokenizer.from_str(json.dumps(settings)),
            self.name,
            end_token=self.end_token,
        )

    @cached_property
    def prefix(self) -> Prefix:
        """What a model of this tokenizer reads before every separate text, such as a
        beginning-of-text token; often nothing."""
        vocab = self.backend.get_vocab(with_added_tokens=False)
        texts = ("a", *itertools.islice(vocab, _MOST_TRIED))
        template = next(filter(None, map(self._before_text, texts)), ())
        return find_prefix(self.backend, self._configuration, self.name, template)

    def _before_text(self, text: str) -> tuple[int, ...]:
        """The ids that the template puts before a text; none also for a text that has no ids."""
        encoding = None
        with contextlib.suppress(UserError):
            encoding = self._limited(
                lambda: self.backend.encode(text, add_special_tokens=True),
                len(text),
            )
        if encoding is None or 0 not in encoding.special_tokens_mask:
            return ()
        return tuple(encoding.ids[: encoding.special_tokens_mask.index(0)])

    def id_of(self, token: str) -> int | None:
        """The id of a token that a user writes; None where there is none."""
        number: int | None = self.backend.token_to_id(token)
        return number

    @cached_property
    def stop_ids(self) -> frozenset[int]:
        """Ids that end a generated text: end tokens that are not text themselves."""
        added = self.backend.get_added_tokens_decoder()
        special = {index: token.content for index, token in added.items() if token.special}
        stops = {index for index, content in special.items() if ends_text(content)}
        return frozenset(stops if self.ends_with_text() else {*stops, self.end_token_id})

    def generated_text(self, ids: Sequence[int], *, special: bool = False) -> str:
        """The text of generated ids, decoded as other evaluations do; without special tokens unless
        `special`."""
        copied = list(ids)
        call = functools.partial(self.backend.decode, copied, skip_special_tokens=not special)
        return str(self._limited(call, len(copied)))

    def decode(self, sequences: Sequence[np.ndarray]) -> list[str]:
        """Text of each id array; bytes of a character that is cut at an end of a sequence become
        U+FFFD."""
        if self.piece_table is None or not is_byte_level(self._small_settings):
            lists = [sequence.tolist() for sequence in sequences]
            decode = self.backend.decode_batch
            call = functools.partial(decode, lists, skip_special_tokens=False)
            return list(self._limited(call, sum(map(len, lists))))
        if not sequences:
            return []
        joined, bounds = self.piece_table.join(np.concatenate(sequences))
        ends = itertools.pairwise(bounds[np.cumsum([0, *map(len, sequences)])])
        return [str(joined[start:stop], "utf-8", "replace") for start, stop in ends]

    def _limited(self, call: Callable[[], Any], size: int) -> Any:
        """The value of `call`, which processes `size` characters or ids."""
        try:
            return limited(call, size, self.name)
        except Exception as error:
            # `tokenizers` reports so that, for example, its unknown token is not in the vocabulary.
            if type(error) is not Exception:
                raise
            raise fails(
                error,
                self.name,
                "add the token that it lacks to its tokenizer.json, or use another tokenizer",
            ) from error

    def checked_encoder(
        self,
        texts: Sequence[str],
        notify: Callable[[str], None] = lambda _: None,
    ) -> Encoder:
        """gigatoken's encoder if it agrees with `encode` on probes and the first of `texts`, else
        `encode`."""
        return checked_encoder(self, texts, notify)

    def describe(self) -> dict[str, Any]:
        """What a manifest records about this tokenizer."""
        return {
            "name": self.name,
            "digest": self.digest,
            "vocab_size": self.vocab_size,
            "end_token": self.end_token,
            "end_token_id": self.end_token_id,
            **({"begin_token": self.prefix.token} if len(self.prefix.ids) == 1 else {}),
        }


class ByteTokenizer(TextTokenizer):
    """The vocabulary of byte-level models: 256 entries, ids are the bytes of UTF-8.

    It has no entry that only ends documents: a newline does, or `end_token`, one ASCII character or
    `<0xNN>`, though that byte is ordinary text, too. Raises UserError if `end_token` is anything
    else.
    """

    def __init__(self, *, end_token: str | None = None) -> None:
        end = "\n" if end_token is None else end_token
        symbols = {byte: symbol for symbol, byte in byte_level_alphabet().items()}
        super().__init__(byte_backend(), BYTES, end_token=symbols[_single_byte(end)])
        self.end_token, self.end_reason = (
            end,
            "as of texts in bytes" if end_token is None else "as --end-token says",
        )

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids (uint32) and offsets (int64, one more than texts)."""
        encoded = [text.encode() for text in texts]
        offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        return np.frombuffer(b"".join(encoded), np.uint8).astype(np.uint32), offsets

    def id_of(self, token: str) -> int | None:
        """A byte: one ASCII character or `<0xNN>`. Raises UserError for anything else."""
        return _single_byte(token)

    def checked_encoder(
        self,
        texts: Sequence[str],
        notify: Callable[[str], None] = lambda _: None,
    ) -> Encoder:
        """`encode`: nothing is faster than copying the bytes."""
        return self.encode

    def ends_with_text(self) -> bool:
        """Always."""
        return True


def _single_byte(end_token: str) -> int:
    written = re.fullmatch(r"<0x([0-9A-Fa-f]{2})>", end_token)
    if written:
        return int(written[1], 16)
    if len(end_token) == 1 and end_token.isascii():
        return ord(end_token)
    raise UserError(
        f"{end_token!r} is not a single byte",
        where=BYTES,
        remedy="give one ASCII character or <0xNN>",
    )


def load_tokenizer(spec: str | None, *, end_token: str | None = None) -> TextTokenizer:
    """Opens a tokenizer: None for the built-in one, "bytes", a tokenizer.json, a model directory, a
    GGUF file or a hub id.

    Raises UserError if there is none, or if it cannot be read.
    """
    from tokenizers import Tokenizer

    if spec == BYTES:
        return ByteTokenizer(end_token=end_token)
    if spec is None or spec == BUILTIN:
        text = (files("recallkit") / "data" / "tokenizer.json").read_text(encoding="utf-8")
        return TextTokenizer(Tokenizer.from_str(text), BUILTIN, end_token=end_token)
    path = Path(spec)
    (check_files_in if path.is_dir() else check_file)(path)
    if (file := path / TOKENIZER_FILE).is_file():
        return _load_file(file, path.resolve().name, end_token)
    if path.is_file() and path.suffix != ".gguf":
        return _load_file(path, path.name, end_token)
    if path.exists():
        return _load_by_transformers(path, end_token)
    local = "give a tokenizer.json or a model directory with --tokenizer"
    backend = _read_tokenizer_file(hub_file(spec, TOKENIZER_FILE, local=local))
    if hub_file_if_any(spec, TOKENIZER_CONFIG) is None:
        unknown = "the token that begins its texts is unknown (bos=TOKEN names it)"
        console.note(f"{spec}: its {TOKENIZER_CONFIG} is not available, so {unknown}")
    configuration = read_configuration(lambda name: hub_file_if_any(spec, name))
    return TextTokenizer(backend, spec, end_token=end_token, configuration=configuration)


def _load_file(path: Path, name: str, end_token: str | None) -> TextTokenizer:
    """A tokenizer.json, with the configuration beside it, or one of another name, alone."""
    is_alone = path.name != TOKENIZER_FILE
    configuration = NOTHING_SAID if is_alone else read_configuration(files_in(path.parent))
    return TextTokenizer(
        _read_tokenizer_file(path),
        name,
        end_token=end_token,
        configuration=configuration,
    )


def load_slices_tokenizer(slices: Path, described: Mapping[str, Any]) -> TextTokenizer:
    """The tokenizer that a slice directory was made with, as its manifest describes it
    (`describe`), read from the directory itself.

    Raises UserError if it is missing or another one.
    """
    path, end_token = slices / TOKENIZER_FILE, described["end_token"]
    if described["name"] == BYTES:
        tokenizer: TextTokenizer = ByteTokenizer(end_token=end_token)
    elif path.is_file():
        tokenizer = _read_kept_tokenizer(path, described)
    elif described["name"] == BUILTIN:
        tokenizer = load_tokenizer(BUILTIN, end_token=end_token)
    else:
        problem = "the tokenizer of these slices is missing"
        raise UserError(
            problem,
            where=path,
            remedy="run the same `recallkit slice` again, which adds it",
        )
    if tokenizer.digest != described["digest"]:
        raise _not_that_of_the_slices(path, described)
    return tokenizer


def _read_kept_tokenizer(path: Path, described: Mapping[str, Any]) -> TextTokenizer:
    backend = _read_tokenizer_file(path)
    if backend.token_to_id(described["end_token"]) is None:
        raise _not_that_of_the_slices(path, described)
    configuration = Configuration(described.get("begin_token"), adds_begin=True)
    tokenizer = TextTokenizer(
        backend,
        described["name"],
        end_token=described["end_token"],
        configuration=configuration,
    )
    # `tokenizers` does not restore every score of a Unigram model to the bit, so the digest of the
    # file itself counts.
    if _digest_settings(json.loads(path.read_text(encoding="utf-8"))) == described["digest"]:
        tokenizer.digest = described["digest"]
    return tokenizer


def _not_that_of_the_slices(path: Path, described: Mapping[str, Any]) -> UserError:
    remedy = "run the same `recallkit slice` again, which writes the right one"
    return UserError(
        f"not {described['name']}, the tokenizer of these slices",
        where=path,
        remedy=remedy,
    )


def write_tokenizer(folder: Path, tokenizer: TextTokenizer) -> None:
    """Writes the tokenizer among the new members of a slice directory."""
    with replacing(folder / TOKENIZER_FILE) as temporary:
        temporary.write_text(tokenizer.backend.to_str(), encoding="utf-8")


def _read_tokenizer_file(path: Path) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer

    size = path.stat().st_size
    if size > config.MAX_TOKENIZER_BYTES:
        raise UserError(
            f"a tokenizer.json of {size:,} bytes: more than any tokenizer has",
            where=path,
            remedy="use another tokenizer",
        )
    try:
        backend: tokenizers.Tokenizer = limited(lambda: Tokenizer.from_file(str(path)), size, path)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"not a tokenizer.json that `tokenizers` reads ({error})",
            where=path,
        ) from error
    return backend


def _check(backend: tokenizers.Tokenizer, name: str, vocab_size: int) -> None:
    """Raises UserError for a tokenizer whose ids or replacements would exhaust the memory, or whose
    ids are not those of the text once."""
    growth, other = 1, "use another tokenizer"
    for part in (backend.normalizer, backend.decoder):
        growth *= 1 if part is None else longest_growth(json.loads(part.__getstate__()))
    dropout = getattr(backend.model, "dropout", None)
    if vocab_size > config.MAX_VOCABULARY:
        most = f"the {config.MAX_VOCABULARY:,} entries that a vocabulary may have"
        problem = f"ids up to {vocab_size - 1:,}, more than {most}"
    elif growth > config.MAX_GROWTH:
        problem = f"its replacements can make a text {growth:,} times as long"
    elif dropout:
        drops = f"drops merges at random (dropout {dropout:g})"
        problem = f"{drops}, so a text has different ids each time"
        other = "set dropout to null in its tokenizer.json"
    elif backend.post_processor is not None and not gives_text_once(
        json.loads(backend.post_processor.__getstate__()),
    ):
        problem, other = (
            "its post-processor repeats the text or leaves it out",
            f"set post_processor to null in its tokenizer.json, or {other}",
        )
    else:
        return
    raise UserError(problem, where=name, remedy=other)


def _load_by_transformers(path: Path, end_token: str | None) -> TextTokenizer:
    """A tokenizer from a GGUF file, or from a directory with a tokenizer in another format."""
    from transformers import AutoTokenizer

    from recallkit.quiet_transformers import FAILURES_TO_READ, first_line, quiet_transformers

    source, options = (path.parent, {"gguf_file": path.name}) if path.is_file() else (path, {})
    try:
        # Without `trust_remote_code=False` transformers would ask on the terminal whether to run
        # the repository's code.
        with quiet_transformers():
            loaded = AutoTokenizer.from_pretrained(str(source), trust_remote_code=False, **options)
        backend = loaded.backend_tokenizer
    except FAILURES_TO_READ as error:
        problem = f"no tokenizer found here ({first_line(error)})"
        raise UserError(
            problem,
            where=path,
            remedy="give a tokenizer.json with --tokenizer",
        ) from error
    name = path.stem if path.is_file() else path.resolve().name
    adds_begin = True if getattr(loaded, "add_bos_token", None) is True else None
    ends = () if loaded.eos_token is None else ((loaded.eos_token, path.name),)
    beside = read_configuration(files_in(path)) if path.is_dir() else NOTHING_SAID
    model_type = beside.model_type
    if path.is_file() and loaded.bos_token == BEGIN_OF_GEMMA:
        model_type = _gguf_architecture(path)
    configuration = Configuration(
        loaded.bos_token,
        adds_begin,
        (*ends, *beside.ends),
        model_type=model_type,
    )
    return TextTokenizer(backend, name, end_token=end_token, configuration=configuration)


def _gguf_architecture(path: Path) -> str:
    """The family of a GGUF file's model, as its header names it."""
    from gguf import GGUFReader

    field = GGUFReader(path).get_field("general.architecture")
    return "" if field is None else str(field.contents())


def _digest_settings(settings: Mapping[str, Any]) -> str:
    """The digest of everything but what decides no id.

    Options of the model that are not set are left out: releases differ in these.
    """
    model = settings["model"]
    deciding = {name: value for name, value in settings.items() if name not in _DECIDE_NO_ID}
    chosen = {name: value for name, value in model.items() if not _is_unset(name, value)}
    options = {name: value for name, value in chosen.items() if name not in _DIGESTED_APART}
    merges = [m if isinstance(m, str) else " ".join(m) for m in model.get("merges", [])]
    identity = {
        **deciding,
        "type": model.get("type"),
        "vocab": model.get("vocab"),
        "merges": merges,
    }
    return digest_json({**identity, "options": options} if options else identity)


def _is_unset(name: str, value: Any) -> bool:
    return value is None or value is False or (value == "" and name in _AFFIXES)


def _stops_in_bytes(text: str, stops: list[int]) -> np.ndarray:
    """Offsets in characters of `text` as offsets in its UTF-8, int64; made non-decreasing by the
    running maximum."""
    code_points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    widths = np.ones(len(code_points), np.int64)
    for first_longer in (0x80, 0x800, 0x10000):  # of UTF-8's sequences of 2, 3 and 4 bytes
        widths += code_points >= first_longer
    before = np.concatenate([np.zeros(1, np.int64), np.cumsum(widths)])
    in_bytes: np.ndarray = np.maximum.accumulate(before[np.array(stops, np.int64)])
    return in_bytes
