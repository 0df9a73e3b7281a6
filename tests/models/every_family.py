"""Every family that transformers has: a tiny model of each is scored, and compared with its own
forward pass.

    python -m tests.models.every_family [--only NAME ...] [--at-once 2] [--write docs/models.md]

Sequences of unequal lengths, all but one longer than the model's windows, are scored in one batch,
with the state carried, and after prompts, of which ids are generated too. Each family has a process
and a time limit. `--write` puts the outcome into the page, between two markers.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import multiprocessing
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.models.shrinking import VOCAB_SIZE, build

LENGTHS = [71, 33, 2, 50, 33]
CHUNKS = (7, 24)
"""Shorter than a window, and longer."""

NEW_IDS = 4
LIMIT = 2e-5
"""Nats by which an NLL may differ."""

SECONDS = 240
"""For one family, on a core shared with others."""

BEGIN, END = "<!-- every family: begin -->", "<!-- every family: end -->"


@dataclass(frozen=True)
class Outcome:
    """What becomes of a family: `equal`, `different`, `refused` or `not built here`."""

    name: str
    result: str
    why: str = ""
    """Of what is refused or not built, in a line."""
    difference: float = 0.0
    """The largest from its own forward pass, in nats."""
    carried: str = "no"
    """Whether its state is carried in `chunks`, in `steps` of one id, or not over such lengths."""
    sharing: str = "any"


def names() -> list[str]:
    """Every `model_type` of which transformers has a model that generates text."""
    from transformers.models.auto import modeling_auto

    of_text = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted({*of_text, *modeling_auto.MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES})


def outcome(name: str, folder: Path, **settings: Any) -> Outcome:
    """What becomes of a family, whose model is saved in an empty folder; `settings` as in
    `build`."""
    import numpy as np
    import transformers

    from recallkit.errors import UserError
    from recallkit.models.loading import check_model, load_model
    from recallkit.models.plan import ModelPlan
    from recallkit.models.spec import ModelSpec

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    ids = [np.random.default_rng(length).integers(3, VOCAB_SIZE, length) for length in LENGTHS]
    try:
        actual = build(name, **settings)
        actual.save_pretrained(folder)
        bare = type(actual).from_pretrained(folder).eval()
    except Exception as error:  # noqa: BLE001 - of transformers
        return Outcome(name, "not built here", _line(error))
    try:
        own = [_own_nll(bare, sequence) for sequence in ids]
        failure = None
    except Exception as error:  # noqa: BLE001 - of transformers
        own, failure = [], _line(error)
    try:
        plan = ModelPlan(ModelSpec(str(folder)), VOCAB_SIZE, device="cpu")
        check_model(plan)
        model = load_model(plan)
        return (
            Outcome(name, "not built here", failure)
            if failure
            else _compared(name, model, ids, own)
        )
    except UserError as error:
        return Outcome(name, "refused", str(error).replace(f"{folder}: ", ""))


def _own_nll(bare: Any, ids: Any) -> Any:
    """NLLs (t - 1,) by a model's own forward pass over one sequence (t,), float64 from its
    logits."""
    import torch

    sequence = torch.from_numpy(ids)
    with torch.no_grad():
        logits = bare(input_ids=sequence[None, :-1], use_cache=False).logits[0].double()
    return (torch.logsumexp(logits, 1) - logits.gather(1, sequence[1:, None])[:, 0]).numpy()


def _compared(name: str, model: Any, ids: list[Any], own: list[Any]) -> Outcome:
    """A loaded model's scores of all sequences beside those of its own forward pass."""
    import numpy as np

    from recallkit.errors import UserError

    packed, offsets = np.concatenate(ids).astype(np.uint32), np.cumsum([0, *LENGTHS])
    readings = [(model.score(packed, offsets).nll, np.concatenate(own))]
    carried, why = "no", ""
    try:
        readings += [
            (model.score_carrying(packed, offsets, chunk).nll, np.concatenate(own))
            for chunk in CHUNKS
        ]
        carried = "steps" if model.pieces(max(LENGTHS), CHUNKS[0]).count(1) > 1 else "chunks"
    except UserError as error:
        why = str(error).partition(": ")[2]
    long = [place for place, sequence in enumerate(ids) if len(sequence) > 2 * NEW_IDS]
    prompts = [ids[place][:-NEW_IDS] for place in long]
    answers = [ids[place][-NEW_IDS:] for place in long]
    continuations = model.generate(prompts, answers, NEW_IDS, lambda *_: False)
    readings += [
        (text.answer_nll, own[place][-NEW_IDS:])
        for place, text in zip(long, continuations, strict=True)
    ]
    largest = float(np.max([np.abs(ours - wanted).max() for ours, wanted in readings]))
    result = "equal" if largest <= LIMIT else "different"
    return Outcome(name, result, why, largest, carried, model.sharing_over(np.array(LENGTHS)))


def _line(error: Exception) -> str:
    """What an error says, in its first line with words."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1] if "validat" in lines[0] else lines[0]
    return re.sub(r"/tmp/\S+", "its folder", said)


# ------------------------------------------------------------------------------- a process for each


def outcomes(chosen: Iterable[str], at_once: int) -> Iterator[Outcome]:
    """What becomes of families, in their order, several at once."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as pool:
        yield from pool.map(_in_a_process, chosen)


def _in_a_process(name: str) -> Outcome:
    """What becomes of a family within SECONDS."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "transformers.modeling_utils"])
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send_outcome, args=(name, there))
    process.start()
    there.close()
    try:
        return (
            here.recv()
            if here.poll(SECONDS)
            else Outcome(name, "not built here", f"takes more than {SECONDS} seconds")
        )
    except EOFError:
        return Outcome(name, "different", "its process ended")
    finally:
        process.kill()
        process.join()


def _send_outcome(name: str, pipe: Any) -> None:
    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        pipe.send(outcome(name, Path(folder)))


# ----------------------------------------------------------------------------------------- the page


def section(all_outcomes: Sequence[Outcome], version: str) -> str:
    """What the page says: how many families, of which version of transformers, and a table of what
    becomes of them."""
    counts = Counter(item.result for item in all_outcomes)
    parts = [f"{counts[result]} are {result}" for result in _ORDER if counts[result]]
    summary = f"{len(all_outcomes)} families of transformers {version}: {', '.join(parts)}"
    opened = f'<details markdown="1">\n<summary>{summary}</summary>'
    return f"{opened}\n\n{table(all_outcomes)}\n\n</details>"


def table(all_outcomes: Iterable[Outcome]) -> str:
    """The rows of the page: what becomes of families, how many, which; the usual outcome's are the
    others."""
    rows: dict[str, list[str]] = defaultdict(list)
    for item in sorted(
        all_outcomes,
        key=lambda item: (_ORDER.index(item.result), _CARRIED.index(item.carried), item.name),
    ):
        shown = f"{item.name}\\*" if item.sharing != "any" else item.name
        rows[_row_of(item)].append(shown)
    lines = [
        f"| {row} | {len(listed)} | {_names_in(row, listed)} |" for row, listed in rows.items()
    ]
    return "\n".join(["| outcome | families | which |", "| --- | --- | --- |", *lines])


def _names_in(row: str, listed: list[str]) -> str:
    """The families of a row, those of the usual one only where the page has a mark at them."""
    if row != _USUAL:
        return ", ".join(listed)
    return ", ".join([*(name for name in listed if name.endswith("*")), "all others"])


_ORDER = ["equal", "different", "refused", "not built here"]
_CARRIED = ["chunks", "steps", "no"]
_CARRYING = {
    "chunks": "state carried in chunks",
    "steps": "state carried in single ids",
    "no": "state not carried",
}
_USUAL = f"equal, {_CARRYING['chunks']}"


def _row_of(item: Outcome) -> str:
    """The row of the page that a family is in: families of one outcome for one reason share it."""
    if item.result == "equal":
        return f"equal, {_CARRYING[item.carried]}"
    if item.result == "different":
        return "another number"
    return f"{item.result}: {_plain(item.why)}"


def _plain(why: str) -> str:
    """A reason without what differs from family to family."""
    for pattern, words in _REASONS.items():
        if re.search(pattern, why):
            return words
    return re.sub(r"[|<>]", "", why)[:120]


_REASONS = {
    "not causal": "not causal, what follows a token changes its score",
    "has no causal language model of type": "an encoder with a decoder, or of images alone",
    "its forward pass fails": (
        "reads no text without an image, a sound or the states of another model"
    ),
    "not a language model with input": "its class names no embeddings and head of the text",
    "weights are missing": "the class of transformers for its text does not find its weights",
    "timm": "needs the package timm",
    "has no attribute|Unrecognized configuration|must be 0": (
        "its class and its default configuration do not fit"
    ),
    "ignore_mismatched_sizes": "does not load what it saved",
    "not appear to have a file": "needs a file beside its weights",
    "weights when cut down": "too large when cut down",
}
"""Patterns of reasons, and what the page says."""


def with_section(page: str, text: str) -> str:
    """A page with the text between its markers."""
    before, _, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main(arguments: list[str]) -> None:
    """Prints what becomes of each family, and then the table."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these families alone")
    parser.add_argument("--at-once", type=int, default=2, help="processes that run at once")
    parser.add_argument("--write", type=Path, metavar="PAGE", help="the page to put the table into")
    options = parser.parse_args(arguments)
    import transformers

    everything = []
    for item in outcomes(options.only or names(), options.at_once):
        print(
            (
                f"{item.result:14} {item.name} {item.difference:.1e} {item.carried} {item.sharing} "
                f"{item.why}"
            ),
            flush=True,
        )
        everything.append(item)
    text = section(everything, transformers.__version__)
    print(text)
    if options.write:
        page = options.write.read_text(encoding="utf-8")
        options.write.write_text(with_section(page, text), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
