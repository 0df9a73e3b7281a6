"""A loaded model that reads, scores and writes one part of a slice directory after another.

While the model works on one part, a thread reads the next (and aligns it, if tokenizers differ).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from recallkit.display import console
from recallkit.models.torch_model import TorchModel
from recallkit.parallel import ahead
from recallkit.parallel.job import Done
from recallkit.scoring import scores
from recallkit.scoring.alignment import align
from recallkit.scoring.begun import saving
from recallkit.scoring.scores import REFERENCE, BatchedScores, BatchLimit, SequenceReader

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from recallkit.models.protocol import ScoringModel
    from recallkit.scoring.alignment import Translation, Translator
    from recallkit.scoring.scores import SequenceScores
    from recallkit.scoring.windows import ContextWindow
    from recallkit.storage.journal import Parts


@dataclass(frozen=True, slots=True)
class _Part:
    """Sequences of the slices, and the ids that the model reads in their place if it has its own
    tokenizer."""

    number: int
    first: int
    offsets: np.ndarray
    ids: np.ndarray
    translation: Translation | None = None

    @property
    def read(self) -> _Part | Translation:
        """What the model reads: ids with their offsets."""
        return self if self.translation is None else self.translation


class Scorer:
    """A model, by the name that messages call it, or a model and the reference beside which it
    reads; and the parts that it makes.

    `seq_len`: predictions in a whole sequence. `batch_tokens`: ids in a batch, None for as many as
    suit the model. `num_entries`: over which entries of the vocabulary two models are compared.
    """

    def __init__(
        self,
        models: Mapping[str, ScoringModel],
        reader: SequenceReader,
        parts: Parts,
        *,
        translator: Translator | None,
        num_entries: int,
        window: ContextWindow,
        seq_len: int,
        batch_tokens: int | None,
    ) -> None:
        self._models, self.reader, self._parts = models, reader, parts
        self._translator, self._window = translator, window
        self.model, *others = models.values()
        if others:
            from recallkit.models.paired import PairedModel

            self.model = PairedModel(self.model, others[0], num_entries)

        def choose_batch() -> int:
            limits = (seq_len, window.context, self.model.max_length)
            length = min(limit for limit in limits if limit)
            return batch_tokens or self.model.batch_tokens(length)

        self.limit = BatchLimit(parts.settle("batch_tokens", choose_batch), console.note)

    def run(self, numbers: Sequence[int]) -> Iterator[Done]:
        """Scores parts; reports the predicted tokens of each batch, and each part as soon as its
        file is complete."""
        for part in ahead(self._read(number) for number in numbers):
            batched = self._batched(part)
            yield from self._score_batches(part, batched)
            self._write(part, self._aligned(part, batched.scores))
            yield Done(0)

    def score_sequence(self, ids: np.ndarray) -> SequenceScores:
        """Scores of one sequence of the slices."""
        part = self._translated(0, 0, ids, np.array([0, len(ids)]))
        batched = self._batched(part)
        for _ in batched.run():
            pass
        return self._aligned(part, batched.scores)

    def _score_batches(self, part: _Part, batched: BatchedScores) -> Iterator[Done]:
        """Scores a part, saving what is done from time to time; reports the tokens of each
        batch."""
        num_tokens = int(part.offsets[-1]) - len(part.offsets) + 1
        with saving(self._parts.begun_path(part.number), batched, num_tokens) as saver:
            reported = saver.tokens_done
            for _ in batched.run():
                yield Done(saver.tokens_done - reported, is_whole=False)
                reported = saver.tokens_done
                saver.save_if_due()

    def _read(self, number: int) -> _Part:
        first, ids, offsets = self.reader.read(number)
        return self._translated(number, first, ids, offsets)

    def _translated(self, number: int, first: int, ids: np.ndarray, offsets: np.ndarray) -> _Part:
        translator = self._translator
        translation = None if translator is None else translator.translate(ids, offsets)
        return _Part(number, first, offsets, ids, translation)

    def _batched(self, part: _Part) -> BatchedScores:
        read = part.read
        return BatchedScores(self.model, read.ids, read.offsets, self.limit, self._window)

    def _aligned(self, part: _Part, scored: SequenceScores) -> SequenceScores:
        """The scores of the slices' tokens, from those of what the model read."""
        if part.translation is not None:
            scored = align(part.translation, scored)
        own, *others = (model.name for model in self._models.values())
        scores.check_finite(own, scored.nll, part.first, part.offsets)
        for other in others:
            nll, kl = scored.beside["nll_reference"], scored.beside["kl"]
            scores.check_finite(other, nll, part.first, part.offsets)
            scores.check_finite(own, kl, part.first, part.offsets, "divergence")
        return scored

    def _write(self, part: _Part, scored: SequenceScores) -> None:
        facts = {} if part.translation is None else asdict(part.translation.counts)
        if part.number == 0:  # joining adds up the facts of all parts: these are of the first alone
            for ending, (name, model) in zip(("", REFERENCE), self._models.items(), strict=False):
                for fact, value in _facts_of_state(model, name, part, self._window).items():
                    facts[f"{fact}{ending}"] = value
        number = part.number
        scores.write_part(self._parts.path(number), part.first, part.offsets, scored, facts)
        self._parts.begun_path(number).unlink(missing_ok=True)


def _facts_of_state(
    model: ScoringModel,
    name: str,
    part: _Part,
    window: ContextWindow,
) -> dict[str, float]:
    """Bytes of the model's state after the longest sequence or window of a part, and, of a variant,
    what reading that in chunks alone changes."""
    if not isinstance(model, TorchModel):
        return {}
    read = part.read
    longest = int(np.diff(read.offsets).argmax())
    ids = read.ids[read.offsets[longest] : read.offsets[longest + 1]]
    limits = [model.max_length, None if window.carry else window.context]
    for limit in limits:
        ids = ids[: limit + 1] if limit else ids
    compression = model.compression
    if compression is not None and compression.should_change and not compression.has_effect:
        unchanged = "nothing is compressed before the last chunk, as with cache=full"
        console.note(f"{name}: in sequences of {len(ids) - 1:,} ids {unchanged}")
    facts: dict[str, float] = {}
    if len(ids) <= 1:
        return facts
    num_bytes = model.state_bytes(ids[:-1])
    if num_bytes is not None:
        facts |= {"state_bytes": num_bytes, "state_ids": len(ids) - 1}
    if compression is not None:
        largest, mean = model.noise_of_reading(ids, np.array([0, len(ids)]))
        facts |= {"reading_max": largest, "reading_mean": mean}
    return facts
