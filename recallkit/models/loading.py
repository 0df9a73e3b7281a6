"""How a name on the command line becomes a model: its kind (`kinds.py`) identifies and loads it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from recallkit.errors import UserError
from recallkit.models.kinds import KINDS, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from recallkit.models.protocol import ModelRequest, ScoringModel


def describe_models() -> list[tuple[str, str]]:
    """For `recallkit models`: (name or form of a name, a line)."""
    return [form for kind in KINDS for form in kind.forms.items()]


def identify_model(request: ModelRequest) -> str:
    """A digest of everything that decides the model's numbers, without loading it: weights, precision, counts.

    Raises UserError where there is no such model.
    """
    return kind_of(request.spec).identify(request)


def warn_remote_code(request: ModelRequest, notify: Callable[[str], None]) -> None:
    """Says whose code is about to run, where a checkpoint brings some and the user allows it. Raises UserError for an unknown hub id."""
    if files := kind_of(request.spec).code_files(request):
        notify(f"{request.spec}: --trust-remote-code runs Python code that comes with this checkpoint ({', '.join(files)})")


def load_model(request: ModelRequest) -> ScoringModel:
    """Loads the model that a request names.

    Raises UserError where there is no such model, it cannot be read, or its vocabulary is smaller than the tokenizer's.
    """
    model = kind_of(request.spec).load(request)
    if model.vocab_size < request.vocab_size:
        name = request.tokenizer.get("name", "in use")
        problem = f"its vocabulary has {model.vocab_size:,} entries, the tokenizer {name} {request.vocab_size:,}"
        remedy = "name the model's own tokenizer with --model-tokenizer (`bytes` for 256 entries), or slice with it (--tokenizer)"
        raise UserError(problem, where=request.spec, remedy=remedy)
    return model
