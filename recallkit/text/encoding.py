"""Encoding a stream of documents: calls into tokenizers' native code within a time limit, gigatoken
where it gives the same ids.

Tokenising dominates the running time (`tokenizers` reaches a few MB/s, gigatoken tens of times
that), so the fast encoder is used if it is installed, but only after it has agreed with the
reference on the first documents of the stream itself.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import queue
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from recallkit import config
from recallkit.errors import UserError, lacks_resources
from recallkit.parallel import ahead
from recallkit.ragged import offsets_of
from recallkit.text.records import EncodedDocuments
from recallkit.text.vocabulary import SPACE_PIECE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from recallkit.text.records import Document

Encoded = tuple[np.ndarray, np.ndarray]
Encoder = Callable[[Sequence[str]], Encoded]
"""Texts to flat ids and offsets, as `TextTokenizer.encode`."""


class Tokenizer(Protocol):
    """What encoding needs of a `TextTokenizer`, whose module imports this one."""

    name: str
    backend: Any
    vocab_size: int

    @property
    def keeps_text(self) -> bool:
        """Whether no text is lost."""

    @property
    def token_bytes(self) -> list[bytes] | None:
        """The bytes of every id; None if they have none of their own."""

    def decode(self, sequences: Sequence[np.ndarray]) -> list[str]:
        """The text of each array of ids."""

    def encode(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Flat ids and offsets, by the reference implementation."""

    def checked_encoder(self, texts: Sequence[str], notify: Callable[[str], None] = ...) -> Encoder:
        """A fast encoder where it gives the same ids, else `encode`."""


_TURN = 1.0
"""Seconds between looks at the clock: if the process is stopped in between, at most this much of
that time is counted."""
_GRACE = 5.0
"""Seconds that an interrupted call is given to end: native code that returns into an exiting
interpreter can crash it."""

_BATCH_CHARACTERS = 4_000_000
_BATCH_DOCUMENTS = 8192
_CHARACTERS_PER_ID = 4
"""Roughly, so that batches of ids are as large as those of text."""

_LONGEST_FAST = 1000
"""Characters of an added token: gigatoken takes minutes for a long one, in which no signal is
heard, its time being quadratic."""
_INSTEAD = "using tokenizers, with which `count` takes about 15 times the CPU time"
"""What gigatoken spares. `time recallkit count train-*.jsonl.zst --tokenizer gpt2.json`, user and
system, 29 November 2026: of 43.7M tokens 4.8 s with it and 62.7 s without, 13 times as long; of
131M tokens, the same text thrice, 11.2 s with it: 188 s without would be 17 times as long."""
_SHOWN = 20
"""Characters of a text that is lost, in a message."""
_CHECK_CHARACTERS = 100_000
_CHECK_CHARACTERS_OF_EACH = 10_000
_PROBES = (
    "",
    " ",
    "\n\n \t\r\n",
    "it's we'll I'M",
    "a  b   c    d",
    "naïve café Ünïcödé ſ",
    "中文字符 한국어 עברית",
    "e\u0301\u200d\ufeff",
    "👩‍👩‍👧 1234567 3.14159",
    "<|endoftext|>a<|endoftext|>",
    "\x00\x7f\u2028x",
)


# -------------------------------------------------------------------------------------- native code


def call_within(
    seconds: float,
    call: Callable[[], Any],
    *,
    computes: bool = True,
    on_wait: Callable[[], None] = lambda: None,
) -> Any:
    """The value of `call()`, made in a second thread; raises what it raises, and TimeoutError once
    it has run for longer than `seconds`.

    Python cannot interrupt native code, such as a pattern that backtracks for years on one line of
    text, but it can stop waiting for it; the thread itself runs until the process ends. Of a call
    that `computes` both elapsed time and CPU time of this process must exceed the limit, so that
    neither a busy machine nor a process that was stopped for an hour causes an error. One that does
    not, but waits for another machine, is left at once when it is interrupted. `on_wait` is called
    about every second until then.
    """
    answers: queue.SimpleQueue[tuple[Any, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            answers.put((call(), None))
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            answers.put((None, error))

    threading.Thread(target=work, daemon=True, name="recallkit-calls").start()
    busy, waited, turn = time.process_time(), 0.0, min(_TURN, seconds / 4)
    while True:
        try:
            value, error = answers.get(timeout=turn)
            break
        except queue.Empty:
            waited += turn
            on_wait()
            if waited >= seconds and (not computes or time.process_time() - busy >= seconds):
                raise TimeoutError(f"not done within {seconds:.0f} s") from None
        except KeyboardInterrupt:
            with contextlib.suppress(queue.Empty):
                answers.get(timeout=_GRACE if computes else 0)
            raise
    if error is not None:
        raise error
    return value


def limited(call: Callable[[], Any], size: int, where: object) -> Any:
    """The value of a call into a tokenizer's native code.

    Raises UserError if it takes far too long for `size` characters, bytes or ids, and if the
    library fails on a text.
    """
    os.environ["RUST_BACKTRACE"] = "0"  # else sixty lines of a panic's stack precede our one line
    seconds = config.ENCODING_SECONDS + size / config.ENCODING_CHARACTERS_PER_SECOND
    try:
        return call_within(seconds, call)
    except TimeoutError as error:
        takes = f"the tokenizer takes more than {seconds:,.0f} s for {size:,} characters"
        problem = f"{takes}; its pattern may backtrack endlessly"
        raise UserError(problem, where=where, remedy="use another tokenizer") from error
    except BaseException as error:
        # Rust's panics are no subclass of Exception, and cannot be imported.
        if type(error).__name__ != "PanicException":
            raise
        raise fails(error, where, "use another tokenizer") from error


def fails(error: BaseException, where: object, remedy: str) -> UserError:
    """The error of a tokenizer that fails on a text.

    Raises MemoryError where the machine lacks memory or threads.
    """
    reason = next(iter(str(error).splitlines()), "no reason given")
    if lacks_resources(error):
        raise MemoryError(reason) from error
    return UserError(f"the tokenizer fails ({reason})", where=where, remedy=remedy)


# ---------------------------------------------------------------------------------------- gigatoken


def fast_encoder(
    tokenizer: Tokenizer,
    notify: Callable[[str], None] = lambda _: None,
) -> Encoder | None:
    """gigatoken's encoder with the signature of `TextTokenizer.encode`, or None if it is not
    installed or refuses the tokenizer."""
    try:
        import gigatoken
    except ImportError:
        return None
    longest = max(
        (len(token.content) for token in tokenizer.backend.get_added_tokens_decoder().values()),
        default=0,
    )
    if longest > _LONGEST_FAST:
        reason = f"an added token of {longest:,} characters"
        notify(f"gigatoken does not support this tokenizer ({reason}): {_INSTEAD}")
        return None
    settings = tokenizer.backend.to_str()
    try:
        engine = limited(
            lambda: gigatoken.Tokenizer.from_json(settings),
            len(settings),
            tokenizer.name,
        )
    except Exception as error:  # noqa: BLE001 - whatever it raises only costs speed
        reason = str(error).splitlines()[0]
        notify(f"gigatoken does not support this tokenizer ({reason}): {_INSTEAD}")
        return None

    def encode(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        copied = list(texts)
        size = sum(map(len, copied))
        layout = limited(lambda: engine.encode_batch(copied), size, tokenizer.name).layout
        offsets = np.asarray(layout.offsets.data, dtype=np.int64)
        return np.asarray(layout.content.data)[offsets[0] : offsets[-1]], offsets - offsets[0]

    return encode


def checked_encoder(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    notify: Callable[[str], None] = lambda _: None,
) -> Encoder:
    """gigatoken's encoder if it agrees with `tokenizer.encode` on probes and the first of `texts`,
    else `tokenizer.encode`."""
    encode = fast_encoder(tokenizer, notify)
    if encode is None:
        return tokenizer.encode
    sample, characters = [*_PROBES], 0
    for text in texts:
        sample.append(text[:_CHECK_CHARACTERS_OF_EACH])
        characters += len(sample[-1])
        if characters >= _CHECK_CHARACTERS:
            break
    if same_ids(encode, tokenizer.encode, sample):
        return encode
    notify(f"gigatoken and tokenizers give different ids for this text: {_INSTEAD}")
    return tokenizer.encode


def same_ids(one: Encoder, other: Encoder, texts: Sequence[str]) -> bool:
    """Whether two encoders give the same ids for every text."""
    return all(np.array_equal(a, b) for a, b in zip(one(texts), other(texts), strict=True))


# ---------------------------------------------------------------------------------------- documents


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if document.ids is not None:
            characters += _CHARACTERS_PER_ID * len(document.ids)
        if characters >= _BATCH_CHARACTERS or len(batch) >= _BATCH_DOCUMENTS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _check_text(documents: Sequence[Document], encoded: Encoded, tokenizer: Tokenizer) -> None:
    """Raises UserError for a document whose ids are not its text.

    Bytes, and what other models read, would be of another text. Normal forms of Unicode are the
    same text, and so are one space more or less before it and "▁", which is read as a space; so is
    other white space where pieces have no bytes of their own.
    """
    ids, offsets = encoded
    added = tokenizer.backend.get_added_tokens_decoder().values()
    # Such tokens take the white space beside them into their one id.
    stripping = [token.content for token in added if token.lstrip or token.rstrip]

    def may_lose(text: str) -> bool:
        return not tokenizer.keeps_text or any(token in text for token in stripping)

    places = [place for place, document in enumerate(documents) if may_lose(document.text)]
    if not places:
        return
    decoded = tokenizer.decode([ids[offsets[place] : offsets[place + 1]] for place in places])
    for place, text in zip(places, decoded, strict=True):
        document = documents[place]
        difference = _difference(document.text, text, has_bytes=tokenizer.token_bytes is not None)
        if difference is not None:
            # Messages have single spaces alone.
            lost, rest = (f"{part[:_SHOWN]!r}".replace("  ", "␣␣") for part in difference)
            problem = f"{tokenizer.name} loses text: {lost} becomes {rest}"
            remedy = "use a tokenizer with an entry for every byte, or change the text"
            raise UserError(problem, where=document.id, remedy=remedy)


def _difference(written: str, read: str, *, has_bytes: bool) -> list[str] | None:
    """Both texts from where they differ; None where they are the same text."""
    texts = [text.replace(SPACE_PIECE, " ") for text in (written, read)]
    texts = [unicodedata.normalize("NFC", text) for text in texts]
    if not has_bytes:
        texts = ["".join(text.split()) for text in texts]
    bodies = [text.lstrip(" ") for text in texts]
    if bodies[0] == bodies[1]:
        return texts if abs(len(texts[0]) - len(texts[1])) > 1 else None
    start = len(os.path.commonprefix(bodies))  # noqa: RUF071 - of characters
    return [body[start:] for body in bodies]


def encode_documents(
    documents: Iterable[Document],
    tokenizer: Tokenizer,
    choose: Callable[[Sequence[str]], Encoder] | None = None,
) -> Iterator[EncodedDocuments]:
    """Encodes a stream in order, a few megabytes at a time.

    Documents that are ids already stay what they are.

    `choose`, given the texts of the first batch, returns the encoder; by default it is
    `checked_encoder`. Raises UserError for a text that the tokenizer loses a part of.
    """
    encode: Encoder | None = None
    dtype = np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32
    for batch in ahead(_batches(documents)):
        written = [document for document in batch if document.ids is None]
        texts = [document.text for document in written]
        ids, offsets = np.empty(0, dtype), np.zeros(1, np.int64)
        if texts:
            encode = encode or (choose or tokenizer.checked_encoder)(texts)
            ids, offsets = encode(texts)
            _check_text(written, (ids, offsets), tokenizer)
        if len(texts) < len(batch):
            encoded = (ids[start:stop] for start, stop in itertools.pairwise(offsets))
            pieces = [next(encoded) if document.ids is None else document.ids for document in batch]
            ids = np.concatenate(pieces, dtype=dtype, casting="unsafe")
            offsets = offsets_of([len(piece) for piece in pieces])
        positions = [document.position for document in batch]
        yield EncodedDocuments(
            ids.astype(dtype, copy=False),
            offsets,
            [d.source for d in batch],
            positions,
            batch[-1].share,
        )
