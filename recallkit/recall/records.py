"""The records of recall evaluations."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RecallRow:
    """One question: `text` ends with the query (`...\\n{key}:`), `value` is what follows it if a model recalls.

    Rows of one document share `doc_id`. `answers` are others that are accepted, if the data has any.
    """

    doc_id: str
    text: str
    value: str
    key: str | None = None
    answers: tuple[str, ...] = ()
    question: str | None = None
    context: str | None = None
