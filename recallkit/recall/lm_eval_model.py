"""Our models behind lm-eval's interface: its requests become questions in ids."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from recallkit.errors import UserError
from recallkit.recall.answering import Request

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from recallkit.recall.answering import Answering

_MOST_GENERATED = 256
"""Ids generated if a task of lm-eval does not specify a number: lm-eval's own default."""

_GREEDY_OPTIONS = {"until", "max_gen_toks", "do_sample", "temperature"}
"""Options of a generation that are supported; any other is refused, except one beam."""


class ModelLM(TemplateLM):  # type: ignore[misc]
    """A model of ours behind lm-eval's interface."""

    def __init__(self, answering: Answering) -> None:
        super().__init__()
        self.answering = answering

    @property
    def eot_token_id(self) -> int:
        """The end token."""
        return self.answering.tokenizer.end_token_id

    @property
    def prefix_token_id(self) -> int:
        """The context of a text without any other context."""
        return self.answering.nothing[-1]

    def tok_encode(
        self,
        string: str,
        add_special_tokens: bool | None = None,
        **_: Any,
    ) -> list[int]:
        """Ids of a text alone: what the model reads before every text it adds itself, whatever is
        truncated."""
        ids: list[int] = self.answering.tokenizer.encode([string])[0].tolist()
        return ids

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Greedy generations, each ended at the first of its stop sequences."""
        questions = [self._generation(*request.args) for request in requests]
        outcomes = self.answering.run(questions)
        return [self.answering.text(*pair) for pair in zip(questions, outcomes, strict=True)]

    def loglikelihood(
        self,
        requests: list[Instance],
        disable_tqdm: bool = False,
    ) -> list[tuple[float, bool]]:
        """See `LM.loglikelihood`; without its bar, beside which ours would be drawn."""
        likelihoods: list[tuple[float, bool]] = super().loglikelihood(requests, disable_tqdm=True)
        return likelihoods

    def loglikelihood_rolling(
        self,
        requests: list[Instance],
        disable_tqdm: bool = False,
    ) -> list[float]:
        """Log-likelihood (nats) of each text, read in windows of the context, each of its tokens
        predicted once."""
        questions, owners = [], []
        for owner, request in enumerate(requests):
            ids = self.tok_encode(request.args[0])
            most = self.answering.max_length or max(1, len(ids))
            windows = get_rolling_token_windows(ids, self.prefix_token_id, most, 1)
            for context, continuation in map(make_disjoint_window, windows):
                prompt = self.answering.context(context)
                questions.append(Request(prompt, np.array(continuation)))
                owners.append(owner)
        sums = np.zeros(len(requests))
        for owner, outcome in zip(owners, self.answering.run(questions), strict=True):
            sums[owner] -= math.fsum(outcome.answer_nll)
        return [float(value) for value in sums]

    def _loglikelihood_tokens(
        self,
        requests: list[tuple[tuple[str, str], list[int], list[int]]],
        **_: Any,
    ) -> list[tuple[float, bool]]:
        questions = []
        for (_context, text), context, continuation in requests:
            size = len(context) + len(continuation)
            room = self.answering.max_length or size
            if not 0 < len(continuation) <= room:
                room_for = f"the context has room for 1 to {room:,} ({text[:40]!r} ...)"
                raise UserError(
                    f"a continuation of {len(continuation):,} ids, but {room_for}",
                    where=self.answering.model.location,
                    remedy="choose another task, or give a longer --context",
                )
            num_cut = max(0, size - room - 1)  # the last id is predicted, and not read
            prompt = self.answering.context(context[num_cut:])
            questions.append(Request(prompt, np.array(continuation)))
        outcomes = self.answering.run(questions)
        return [(-math.fsum(one.answer_nll), bool(one.is_greedy)) for one in outcomes]

    def _generation(self, context: str, options: dict[str, Any]) -> Request:
        wanted = normalize_gen_kwargs(options, _MOST_GENERATED)
        other = {name for name in wanted if name not in _GREEDY_OPTIONS}
        if wanted.get("num_beams") == 1:
            other.discard("num_beams")
        if wanted.get("do_sample") or other:
            names = ", ".join(sorted(other)) or "sampling"
            problem = f"it asks for {names}, but generation is greedy here"
            raise UserError(problem, where="--lm-eval-task", remedy="choose another task")
        stops = handle_stop_sequences(wanted.get("until"), eos=None)
        ids, most = self.tok_encode(context), int(wanted["max_gen_toks"])
        num_cut = self.answering.num_cut(len(ids), most)
        prompt = self.answering.context(ids[num_cut:])
        return Request(prompt, np.empty(0, np.int64), most, tuple(filter(None, stops)))
