"""The tokenizer whose ids a model reads, where that is not the one of the slices."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.models.loading import own_tokenizer, tokenizer_remedy

if TYPE_CHECKING:
    from recallkit.scoring.plan import ScoringPlan
    from recallkit.text.tokenizers import TextTokenizer


@dataclass(frozen=True, slots=True)
class ReadTokenizer:
    """The tokenizer whose ids a model reads: its own, by the name under which it is opened, or
    (None) that of the slices.

    `doubt`: a note for the user where its own is not known.
    """

    name: str | None
    tokenizer: TextTokenizer
    doubt: str = ""

    def applied(self, plan: ScoringPlan) -> ScoringPlan:
        """The plan with the model's own tokenizer, where it gives other ids than the slices'."""
        digest = plan.sequences["tokenizer"]["digest"]
        is_same = self.name is None or self.tokenizer.digest == digest
        if is_same or _gives_the_same_ids(self.tokenizer, plan):
            return plan
        return replace(
            plan,
            own_tokenizer=self.name,
            vocab_size=self.tokenizer.vocab_size,
            largest_id=None,
            tokenizer=self.tokenizer.describe(),
        )


def read_tokenizer(plan: ScoringPlan) -> ReadTokenizer:
    """The tokenizer whose ids a model reads. Raises UserError for one that is named, or is beside
    it, and cannot be read."""
    from recallkit.text.tokenizers import load_slices_tokenizer

    used = plan.sequences["tokenizer"]
    name = plan.tokenizer_option or own_tokenizer(plan.location)
    doubt = ""
    if name is not None:
        try:
            return ReadTokenizer(name, _load_tokenizer(name, used["end_token"]))
        except UserError as error:
            if plan.tokenizer_option is not None or Path(name).exists():
                problem = f"its tokenizer cannot be read ({error.problem})"
                remedy = tokenizer_remedy(plan.tokenizer_option)
                raise UserError(problem, where=name, remedy=remedy) from error
            missing = f"no tokenizer found ({error.problem})"
            doubt = f"{plan.name}: {missing}; {used['name']} is assumed"
    elif Path(plan.location).is_dir() or plan.spec.is_live:
        assumed = f"{used['name']} is assumed (to name its own: PATH,tokenizer=...)"
        doubt = f"{plan.name}: no tokenizer beside it; {assumed}"
    return ReadTokenizer(None, load_slices_tokenizer(plan.slices, used), doubt)


def _load_tokenizer(name: str, end_token: str) -> TextTokenizer:
    """A tokenizer with its own end token, or with the slices' where it names none."""
    from recallkit.text.tokenizers import load_tokenizer

    try:
        return load_tokenizer(name)
    except UserError as error:
        try:
            return load_tokenizer(name, end_token=end_token)
        except UserError:
            raise error from None


def _gives_the_same_ids(own: TextTokenizer, plan: ScoringPlan) -> bool:
    """Whether a tokenizer is the slices' own, saved in another form.

    Every entry is the same, it decodes the first sequences' ids to their text, and it encodes that
    text in about as many ids. If in doubt the answer is no: NLLs aligned needlessly are correct,
    ids of another vocabulary are not.
    """
    import pyarrow.parquet as pq

    from recallkit.text.tokenizers import load_slices_tokenizer

    used = load_slices_tokenizer(plan.slices, plan.sequences["tokenizer"])
    if "bytes" in (own.name, used.name):
        return False
    entries = own.backend.get_vocab()
    if any(entries.get(token) != index for token, index in used.backend.get_vocab().items()):
        return False
    with pq.ParquetFile(plan.slices / "sequences.parquet", pre_buffer=False) as file:
        rows = next(file.iter_batches(batch_size=8, columns=["tokens", "text"]))
    sequences = [row.values.to_numpy() for row in rows["tokens"]]
    texts = rows["text"].to_pylist()
    largest = max(int(sequence.max(initial=0)) for sequence in sequences)
    if largest >= own.vocab_size or own.decode(sequences) != texts:
        return False
    # The same text with other ids: one vocabulary may contain the other. Cuts at a sequence's ends
    # cost a few ids.
    num_ids, num_own = sum(map(len, sequences)), len(own.encode(texts)[0])
    return abs(num_own - num_ids) <= num_ids // 10 + 4 * len(sequences)
