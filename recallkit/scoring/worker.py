"""The scoring job and its worker: loads the model once, then reads, scores and writes one part after another.

While the model works on one part, a thread reads the next (and aligns it, if tokenizers differ). Parts that take long are saved while they
are begun: after half a minute, and when a run is interrupted. What is saved are the scores of whole batches. Which sequences share a batch
depends on the part and the options alone, so a part that is resumed has the bytes of one that was scored at once.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from recallkit.display import console
from recallkit.models.loading import load_unchanged, on_its_device
from recallkit.models.torch_model import TorchModel
from recallkit.parallel import ahead
from recallkit.parallel.job import Done
from recallkit.scoring import scores
from recallkit.scoring.alignment import align
from recallkit.scoring.scores import REFERENCE, BatchedScores, BatchLimit, ContextWindow, SequenceReader
from recallkit.storage import artifacts
from recallkit.storage.journal import read_part

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from recallkit.models.protocol import ModelRequest, ScoringModel
    from recallkit.parallel.job import WorkerSlot
    from recallkit.scoring.alignment import Translation, Translator
    from recallkit.scoring.scores import SequenceScores
    from recallkit.storage.journal import Parts


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """Everything that a process needs to score parts of a slice directory; it can be pickled."""

    request: ModelRequest
    model_digest: str
    slices: Path
    sequences_digest: str
    parts: Parts
    seq_len: int
    """Predictions in a whole sequence of the slices."""
    tokenizer: str | None = None
    """The model's own tokenizer and its token between documents, if it is not the tokenizer of the slices."""
    end_token: str | None = None
    batch_tokens: int | None = None
    window: ContextWindow = ContextWindow()
    sequences_per_part: int = scores.SEQUENCES_PER_PART
    reference: ModelRequest | None = None
    """The model whose predictions this one's are compared with, side by side; and its digest."""
    reference_digest: str = ""

    unit: ClassVar[str] = "tokens"
    doing: ClassVar[str] = "scoring"
    remedy: ClassVar[str] = "give fewer --workers or a smaller --batch-tokens"
    max_items_per_task: ClassVar[int] = 8

    @property
    def where(self) -> str:
        """The model, and how much of its context it reads if that is not all."""
        window = self.window
        last = f", last {window.context - window.stride + 1:,} ids" if window.in_steps and window.context and window.stride else ""
        against = f" against {self.reference.name}" if self.reference is not None else ""
        return f"{self.request.name}{against}{last}"

    @property
    def prefers_gpu(self) -> bool:
        """Whether a GPU would be used."""
        return "cpu" not in (self.request.device, "" if self.reference is None else self.reference.device)

    def open(self, slot: WorkerSlot | None = None) -> Scorer:
        """Loads the model, onto the slot's GPU if there is one. See `Job.open`."""
        if slot is None:
            return Scorer(self)
        reference = None if self.reference is None else on_its_device(self.reference, slot)
        return Scorer(replace(self, request=on_its_device(self.request, slot), reference=reference))

    def reader(self) -> SequenceReader:
        """A reader of the sequences by part."""
        return SequenceReader(self.slices / "sequences.parquet", self.sequences_per_part, self.sequences_digest)

    @property
    def numbers(self) -> range:
        """The parts."""
        return range(self.reader().num_parts())

    @property
    def total(self) -> int:
        """Predicted tokens."""
        return int(artifacts.read_manifest(self.slices / "sequences.parquet")["num_rows"])

    def kept(self) -> int:
        """The predicted tokens whose scores are on disk, of parts that are complete or begun."""
        there = self.parts.done()
        begun = (tokens_saved(self.parts.begun_path(number)) for number in self.numbers if number not in there)
        return sum(scores.part_rows(self.parts.path(number)) for number in there) + sum(begun)


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences of the slices, and the ids that the model reads in their place if it has its own tokenizer."""

    number: int
    first: int
    offsets: np.ndarray
    ids: np.ndarray
    translation: Translation | None = None


class Scorer:
    """A loaded model and its job.

    Raises UserError if the model's files or the sequences have changed since the job was made.
    """

    def __init__(self, job: ScoringJob) -> None:
        self.job = job
        self.translator = _open_translator(job)
        self.model = load_unchanged(job.request, job.model_digest)
        self._sides = [("", job.request.name, self.model)]
        """The models that are loaded: how the names of their facts end, what messages call them."""
        if job.reference is not None:
            from recallkit.models.paired import PairedModel

            reference = load_unchanged(job.reference, job.reference_digest)
            self._sides.append((REFERENCE, job.reference.name, reference))
            self.model = PairedModel(self.model, reference, job.request.vocab_size)
        self.limit = BatchLimit(job.parts.settle("batch_tokens", self._choose_batch), console.note)

    def _choose_batch(self) -> int:
        at_once = (self.job.seq_len, self.job.window.context, self.model.max_length)
        return self.job.batch_tokens or self.model.batch_tokens(min(length for length in at_once if length))

    def run(self, numbers: Sequence[int]) -> Iterator[Done]:
        """Scores parts; reports the predicted tokens of each batch, and each part as soon as its file is complete."""
        reader = self.job.reader()
        for part in ahead(self._read(reader, number) for number in numbers):
            batched = self._batched(part)
            yield from self._score_batches(part, batched)
            self._write(part, self._aligned(part, batched.scores))
            yield Done(0)

    def score_sequences(self, ids: np.ndarray, offsets: np.ndarray) -> SequenceScores:
        """Scores of a few sequences of the slices."""
        part = self._translated(0, 0, ids, offsets)
        batched = self._batched(part)
        for _ in batched.run():
            pass
        return self._aligned(part, batched.scores)

    def _score_batches(self, part: _Part, batched: BatchedScores) -> Iterator[Done]:
        """Scores a part, saving what is done from time to time; reports the tokens of each batch."""
        num_tokens = int(part.offsets[-1]) - len(part.offsets) + 1
        with saving(self.job.parts.begun_path(part.number), batched, num_tokens) as saver:
            reported = saver.tokens_done
            for _ in batched.run():
                yield Done(saver.tokens_done - reported, is_whole=False)
                reported = saver.tokens_done
                saver.save_if_due()

    def _read(self, reader: SequenceReader, number: int) -> _Part:
        first, ids, offsets = reader.read(number)
        return self._translated(number, first, ids, offsets)

    def _translated(self, number: int, first: int, ids: np.ndarray, offsets: np.ndarray) -> _Part:
        translation = self.translator.translate(ids, offsets) if self.translator is not None else None
        return _Part(number, first, offsets, ids, translation)

    def _batched(self, part: _Part) -> BatchedScores:
        read = part if part.translation is None else part.translation
        return BatchedScores(self.model, read.ids, read.offsets, self.limit, self.job.window)

    def _aligned(self, part: _Part, scored: SequenceScores) -> SequenceScores:
        """The scores of the slices' tokens, from those of what the model read."""
        scored = scored if part.translation is None else align(part.translation, scored)
        scores.check_finite(self.job.request.spec, scored.nll, part.first, part.offsets)
        if self.job.reference is not None:
            scores.check_finite(self.job.reference.spec, scored.beside["nll_reference"], part.first, part.offsets)
            scores.check_finite(self.job.request.spec, scored.beside["kl"], part.first, part.offsets, "divergence")
        return scored

    def _write(self, part: _Part, scored: SequenceScores) -> None:
        facts = {} if part.translation is None else asdict(part.translation.counts)
        for end, name, model in self._sides if part.number == 0 else ():
            facts |= {f"{fact}{end}": value for fact, value in _facts_of_state(model, name, part, self.job.window).items()}
        scores.write_part(self.job.parts.path(part.number), part.first, part.offsets, scored, facts)
        self.job.parts.begun_path(part.number).unlink(missing_ok=True)


def _facts_of_state(model: ScoringModel, name: str, part: _Part, window: ContextWindow) -> dict[str, float]:
    """Bytes of the model's state after the longest sequence or window of one, and, of a variant, what reading that in chunks alone changes.

    They are facts of the first part alone, so that joining, which adds up, keeps them.
    """
    if not isinstance(model, TorchModel):
        return {}
    read = part if part.translation is None else part.translation
    limits = [limit for limit in (model.max_length, None if window.carry else window.context) if limit]
    longest = int(np.diff(read.offsets).argmax())
    ids = read.ids[read.offsets[longest] : read.offsets[longest + 1]][: min(limits) + 1 if limits else None]
    compression = model.compression
    if compression is not None and compression.should_change and not compression.has_effect:
        console.note(f"{name}: in sequences of {len(ids) - 1:,} ids nothing is compressed before the last chunk, as with cache=full")
    num_bytes = model.state_bytes(ids[:-1]) if len(ids) > 1 else None
    found: dict[str, float] = {} if num_bytes is None else {"state_bytes": num_bytes, "state_ids": len(ids) - 1}
    if compression is not None and len(ids) > 1:
        found |= dict(zip(("reading_max", "reading_mean"), model.noise_of_reading(ids, np.array([0, len(ids)])), strict=True))
    return found


def _open_translator(job: ScoringJob) -> Translator | None:
    if job.tokenizer is None:
        return None
    from recallkit.scoring.alignment import Translator
    from recallkit.text.tokenizers import load_slices_tokenizer, load_tokenizer

    described = artifacts.read_manifest(job.slices / "sequences.parquet")["tokenizer"]
    other = load_tokenizer(job.tokenizer, end_token=job.end_token)
    return Translator(load_slices_tokenizer(job.slices, described), other, notify=console.note)


# ------------------------------------------------------------------------------------------------------- begun parts

SECONDS_BETWEEN_SAVES = 30.0
"""A kill costs at most so much work, and the batch under way."""


@contextlib.contextmanager
def saving(path: Path, batched: BatchedScores, num_tokens: int) -> Iterator[Saver]:
    """A block in which a part of `num_tokens` predicted tokens is scored: what an earlier run saved of it is taken up, and what is
    done when an exception ends it is saved.

    Raises UserError for a damaged file, which is removed.
    """
    saver = Saver(path, batched, num_tokens)
    try:
        yield saver
    except BaseException:
        with contextlib.suppress(OSError):  # what ended the run says more than a full disk
            saver.save()
        raise


class Saver:
    """The file of a begun part."""

    def __init__(self, path: Path, batched: BatchedScores, num_tokens: int) -> None:
        self._path, self._batched, self._num_tokens, self._time = path, batched, num_tokens, time.monotonic()
        if path.exists():
            table = read_part(path)
            for name, into in self._columns.items():
                into[:] = table[name].to_numpy()
            batched.num_done = int(artifacts.read_manifest(path)["batches"])
        self._saved = batched.num_done

    @property
    def _columns(self) -> dict[str, np.ndarray]:
        return {**self._batched.scores.of_model, "context": self._batched.scores.context}

    @property
    def tokens_done(self) -> int:
        """Predicted tokens of the slices that are scored: for a model with its own tokens, as many of them as of its own."""
        return round(self._batched.share_done * self._num_tokens)

    def save_if_due(self) -> None:
        """Saves what is done if the last time was long ago."""
        if time.monotonic() - self._time >= SECONDS_BETWEEN_SAVES:
            self.save()
            self._time = time.monotonic()

    def save(self) -> None:
        """Saves what is done, in place of what was saved before."""
        import pyarrow as pa

        if self._batched.num_done == self._saved:
            return
        table = pa.table({name: pa.array(values) for name, values in self._columns.items()})
        facts = {"batches": self._batched.num_done, "tokens": self.tokens_done}
        artifacts.write_parquet(self._path, [table], table.schema, facts)
        self._saved = self._batched.num_done


def tokens_saved(path: Path) -> int:
    """The predicted tokens in the file of a begun part; 0 if there is none."""
    return int(artifacts.read_manifest(path)["tokens"]) if path.exists() else 0
