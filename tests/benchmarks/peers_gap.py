"""What two other tools say of the same gap: Marin's gap finder and olmo-eval's copying score, from the same NLLs of the same text.

    python tests/benchmarks/peers_gap.py --marin PYTHON --copying FILE [REFERENCE MODEL] [--slices DIR]

Neither is part of this project. PYTHON (or $RECALLKIT_MARIN_PYTHON) is an interpreter with Marin's package `marin-levanter` and
`gitpython`; of it the report is run (`levanter.analysis.perplexity_gap.GapReportBuilder`), on per-byte losses made from our NLLs as its own
scoring makes them: a token's NLL divided equally among its bytes. Its scoring runs JAX models only, and is not run. FILE (or
$RECALLKIT_NGRAM_COPYING) is `src/olmo_eval/common/scorers/ngram_copying.py` of allenai/olmo-eval. A peer that is not there is left out,
which a line says.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import tempfile
import types
from importlib.util import module_from_spec, spec_from_file_location
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks import harness

K_VALUES = (1, 2, 3, 4, 5)
FURTHER = ("first_rare", "rare_word", "folded", "capitalised", "number", "identifier", "content_word", "function_word", "closing_bracket")


def load_copying(path: Path) -> Any:
    """The module of olmo-eval's copying score, with stand-ins for the two classes of its package that it takes."""
    package, types_, base = (types.ModuleType(f"olmo_eval.common{name}") for name in (".scorers", ".types", ".scorers.base"))
    package.__path__ = []  # type: ignore[attr-defined]
    types_.Instance = types_.LMOutput = base.Scorer = object  # type: ignore[attr-defined]
    roots = {name: types.ModuleType(name) for name in ("olmo_eval", "olmo_eval.common")}
    sys.modules.update(roots | {module.__name__: module for module in (package, types_, base)})
    spec = spec_from_file_location("olmo_eval.common.scorers.ngram_copying", path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look themselves up
    spec.loader.exec_module(module)
    return module


def copying_scores(path: Path, sequences: list[list[int]], nlls: list[np.ndarray], texts: list[str]) -> dict[int, tuple[float, float]]:
    """k -> bits per byte on repeated k-grams, over all sequences, and the summed NLL there (nats), by olmo-eval's scorer."""
    theirs = load_copying(path)
    found = {}
    for k in K_VALUES:
        scorer, nll, num_bytes = theirs.NGramCopyingBPBScorer(k=k), 0.0, 0
        for ids, own in zip(sequences, nlls, strict=True):
            pairs = zip(ids, [0.0, *own.tolist()], strict=True)
            entries = [{"token_id": id_, "token": texts[id_], "logprob": -value} for id_, value in pairs]
            totals = scorer.masked_totals(types.SimpleNamespace(logprobs=entries)) or (0.0, 0)
            nll, num_bytes = nll - totals[0], num_bytes + totals[1]
        found[k] = (nll / num_bytes / math.log(2), nll)
    return found


def per_byte(text: bytes, lengths: np.ndarray, nlls: list[np.ndarray]) -> tuple[str, list[list[float]]]:
    """A sequence as Marin's tool reads it: its text, without the bytes of characters that are cut at its ends, and each byte's losses."""
    shown = text.decode("utf-8", "ignore")
    begin = text.find(shown.encode()) if shown else 0
    assert begin >= 0, "a sequence of text that is not UTF-8"
    spread = [np.repeat(nll[lengths > 0] / lengths[lengths > 0], lengths[lengths > 0]) for nll in nlls]
    return shown, [losses[begin : begin + len(shown.encode())].tolist() for losses in spread]


def read_sequences(folder: Path, models: list[str]) -> tuple[list[list[int]], list[list[np.ndarray]], list[dict[str, Any]], list[str]]:
    """The ids of each sequence, each model's NLLs, the documents for Marin's tool, and the text of every id."""
    import pyarrow.parquet as pq

    import recallkit
    from recallkit.profiling import token_texts
    from recallkit.storage.artifacts import read_manifest
    from recallkit.text.tokenizers import load_slices_tokenizer

    tokenizer = load_slices_tokenizer(folder, read_manifest(folder / "tokens.parquet")["tokenizer"])
    text = tokenizer.document_text
    assert text is not None
    columns = [f"nll_{model}" for model in models]
    scores = recallkit.tokens(folder, models).select("sequence", *columns).collect()
    bounds = np.flatnonzero(np.diff(scores["sequence"].to_numpy(), prepend=-1, append=-1))
    nlls = [scores[column].to_numpy().astype(np.float64) for column in columns]
    table = pq.read_table(folder / "sequences.parquet", columns=["tokens", "source"])
    sequences = [list(map(int, ids)) for ids in table["tokens"].to_pylist()]
    parts, documents = [], []
    for ids, source, (start, stop) in zip(sequences, table["source"].to_pylist(), pairwise(bounds), strict=True):
        own = [nll[start:stop] for nll in nlls]
        every = np.array(ids, np.uint32)
        shown, losses = per_byte(text.join(every[1:], every[:-1]), text.lengths(every[1:], every[:-1]), own)
        parts.append(own)
        documents.append({"source": source, "text": shown, "losses": losses})
    return sequences, parts, documents, token_texts(tokenizer)


def marin_report(path: str) -> dict[str, Any]:
    """The summary of Marin's report on a file of documents; run by the interpreter that has its package."""
    from levanter.analysis.perplexity_gap import GapReportBuilder, RawTextDocument

    builder = GapReportBuilder("model", "reference", "")
    for row, given in enumerate(json.loads(Path(path).read_text(encoding="utf-8"))):
        document = RawTextDocument(given["source"], (), "sequences", row, given["text"])
        reference, model = (np.array(losses) for losses in given["losses"])
        builder.add_document(document=document, per_byte_loss_a=model, per_byte_loss_b=reference)
    summary: dict[str, Any] = builder.build_summary()
    return summary


def ask_marin(python: str, documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The summary of Marin's report."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "documents.json"
        path.write_text(json.dumps(documents), encoding="utf-8")
        summary: dict[str, Any] = harness.apart(marin_report, path, python=python, PYTHONPATH="", JAX_PLATFORMS="cpu")
    return summary


def print_marin(summary: dict[str, Any]) -> None:
    whole = sum(row["delta_bits"] for row in summary["datasets"])
    print("\nMarin's gap finder: bits per byte")
    for title, rows in (("source", summary["datasets"]), ("pattern", summary["pattern_buckets"])):
        for row in rows:
            bits = f"{row['model_b_bpb']:8.3f}{row['model_a_bpb']:8.3f}{row['gap_bpb']:8.3f}"
            print(f"  {title} {row['name']:28}{bits}{100 * row['delta_bits'] / whole:8.1f} % of the gap")
    literals = [row.get("name") or row.get("literal") or row.get("text") for row in summary["top_literals"]["model_a_worse"][:8]]
    print("  literals in which the model is worst:", " ".join(map(str, literals)))


def print_ours(tables: Any, model: str) -> None:
    from recallkit.display.cells import percent

    print("\nrecallkit: share of the gap, 95 % interval, share of tokens, retained, control")
    for row in tables.gap.filter(source="ALL", model=model).to_dicts():
        if row["gap_share_ci_low"] is not None:
            retained, control = (percent(row[name]) for name in ("retained", "control_share"))
            print(f"  {row['slice']:18}{share_of(row):30}{percent(row['share_of_tokens'], 2):>9}{retained:>9}{control:>9}")
    for row in tables.by_partition.filter(model=model).to_dicts():
        print(f"  {row['slice']:28}{share_of(row)}")


def share_of(row: dict[str, Any]) -> str:
    """The share of the gap in a row with its interval."""
    from recallkit.display.cells import percent, percent_range

    return f"{percent(row['gap_share']):>9} ({percent_range(row['gap_share_ci_low'], row['gap_share_ci_high'])})"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("models", nargs="*", default=["zoo:attention", "zoo:mamba"], help="the reference and a model")
    options.add_argument("--slices", type=Path, help="a slice directory; by default that of the built-in text")
    options.add_argument("--marin", default=os.environ.get("RECALLKIT_MARIN_PYTHON"), help="an interpreter with marin-levanter")
    options.add_argument("--copying", default=os.environ.get("RECALLKIT_NGRAM_COPYING"), help="olmo-eval's ngram_copying.py")
    given = options.parse_args()
    import recallkit
    from recallkit import builtin

    reference, model = given.models
    folder = given.slices or builtin.slices()
    asked = [f"copy:k{k}" for k in K_VALUES]
    with tempfile.TemporaryDirectory() as out:
        tables = recallkit.gap(reference, model, slices=folder, slice=[*asked, *FURTHER], out=out, force=True)
    sequences, nlls, documents, texts = read_sequences(folder, [reference, model])
    whole = tables.gap.row(0, named=True)
    print(f"{whole['tokens']:,} tokens; {reference}: {whole['nll_reference']:.4f} nats per token, {model}: {whole['nll_model']:.4f}")
    print_ours(tables, model)
    if given.marin:
        summary = ask_marin(given.marin, documents)
        print_marin(summary)
        theirs = sum(row["delta_bits"] for row in summary["datasets"]) * math.log(2)
        ours = whole["delta_nll"] * whole["tokens"]
        print(f"  its gap: {theirs:.1f} nats, ours: {ours:.1f}; without bytes (end of a document, cut characters): {ours - theirs:.1f}")
    else:
        print("\nMarin's gap finder is not there: give --marin PYTHON")
    if given.copying:
        print("\nolmo-eval: bits per byte on repeated k-grams; its summed NLL less ours, in nats")
        found = [copying_scores(Path(given.copying), sequences, [own[place] for own in nlls], texts) for place in (0, 1)]
        slices = {row["slice"]: row for row in tables.gap.filter(source="ALL").iter_rows(named=True)}
        for k in K_VALUES:
            row = slices[f"copy:k{k}"]
            less = [scores[k][1] - row[f"nll_{side}"] * row["tokens"] for side, scores in zip(("reference", "model"), found, strict=True)]
            print(f"  k = {k} {found[0][k][0]:8.3f}{found[1][k][0]:8.3f}{less[0]:12.6f}{less[1]:10.6f}")
    else:
        print("\nolmo-eval's copying score is not there: give --copying FILE")


if __name__ == "__main__":
    main()
