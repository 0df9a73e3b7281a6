"""Recorded NLLs: the answer of scoring here, from files that other programs wrote; and what is
refused."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from safetensors.numpy import save_file

import recallkit
from recallkit.errors import UserError
from recallkit.report import excerpts
from recallkit.scoring import recorded

SEQ_LEN, TOKENS = 256, 8_000


@pytest.fixture(scope="module")
def slices(home, tmp_path_factory) -> Path:
    """Slices of the built-in text with scores of two models of the zoo, and their pack."""
    folder = tmp_path_factory.mktemp("recorded") / "slices"
    slice_with_pack(folder)
    recallkit.score(["zoo:attention", "zoo:hyena"], slices=folder)
    return folder


def slice_with_pack(folder: Path) -> None:
    recallkit.slice(
        ["demo:validation"], limit_tokens=TOKENS, seq_len=SEQ_LEN, out=folder, pack=True
    )


def nlls(slices: Path, model: str = "zoo:hyena") -> np.ndarray:
    """The NLLs of scoring here, as one array (num_rows,)."""
    return pl.read_parquet(next((slices / "scores").glob(f"{model.replace(':', '-')}.*.parquet")))[
        "nll"
    ].to_numpy()


def grid(slices: Path, values: np.ndarray) -> np.ndarray:
    """(sequences, seq_len), as docs/nlls.md's writer fills it from the pack alone."""
    lengths = np.load(slices / "pack/lengths.npy")
    rows = np.zeros((len(lengths), SEQ_LEN), values.dtype)
    starts = np.cumsum([0, *(lengths - 1)])
    for row, length in enumerate(lengths):
        rows[row, : length - 1] = values[starts[row] : starts[row + 1]]
    return rows


def table(slices: Path, values: np.ndarray, **more: Any) -> pa.Table:
    tokens = pl.read_parquet(slices / "tokens.parquet", columns=["sequence", "position"])
    return pa.table(
        {
            "sequence": tokens["sequence"].to_numpy(),
            "position": tokens["position"].to_numpy(),
            "nll": values,
            **more,
        }
    )


WRITERS = {
    "flat.npy": lambda slices, nll, path: np.save(path, nll.astype(np.float64)),
    "grid.npy": lambda slices, nll, path: np.save(path, grid(slices, nll)),
    "a.safetensors": lambda slices, nll, path: save_file(
        {"nll": grid(slices, nll)}, path, {"unit": "nats"}
    ),
    "a.parquet": lambda slices, nll, path: pq.write_table(
        table(slices, nll), path, row_group_size=997
    ),
    "a.arrow": lambda slices, nll, path: pyarrow.feather.write_feather(
        table(slices, nll), path, chunksize=1000
    ),
}


@pytest.mark.parametrize("name", WRITERS)
def test_arrays_give_the_answer_of_scoring_here_to_the_digit(name, slices, tmp_path):
    models = {"attention": tmp_path / f"attention-{name}", "hyena": tmp_path / f"hyena-{name}"}
    for model, path in models.items():
        WRITERS[name](slices, nlls(slices, f"zoo:{model}"), path)
    mine = recallkit.gap("zoo:attention", "zoo:hyena", slices=slices, out=tmp_path / "mine")
    theirs = recallkit.gap(*models.values(), slices=slices, out=tmp_path / "theirs")
    for table in ("gap", "by_position", "by_distance", "by_partition"):
        names = ["reference", "model", "source"]
        own, other = (getattr(result, table).drop(names, strict=False) for result in (mine, theirs))
        assert other.equals(own)


def test_causal_recall_is_answered_from_arrays(few_slices, tmp_path):
    slices = tmp_path / "slices"
    shutil.copytree(few_slices, slices, ignore=shutil.ignore_patterns("scores", "gap", "intervene"))
    counts, models, options = (
        few_slices.parent / "counts.duckdb",
        ["control:recall", "control:bigram"],
        {"samples": 10},
    )
    mine = recallkit.intervene(
        models, slices=slices, counts=counts, out=tmp_path / "mine", **options
    )
    [changed] = (slices / "intervene").glob("text-*")
    arrays = {
        model.removeprefix("control:"): tmp_path / f"{model.removeprefix('control:')}.npy"
        for model in models
    }
    for model, path in zip(models, arrays.values(), strict=True):
        np.save(path, nlls(slices, model))
    problem = "recall: recorded NLLs of the text, but none of the changed text; record those of "
    problem += f"{changed / 'pack/ids.npy'} in {tmp_path}/recall.changed.npy"
    with pytest.raises(UserError, match=re.escape(problem)):
        recallkit.intervene(arrays, slices=slices, counts=counts, **options)
    assert len(np.load(changed / "pack/lengths.npy")) == len(np.load(changed / "pack/ids.npy"))
    for model, path in zip(models, arrays.values(), strict=True):
        np.save(path.with_name(f"{path.stem}.changed.npy"), nlls(changed, model))
    theirs = recallkit.intervene(
        arrays, slices=slices, counts=counts, out=tmp_path / "theirs", **options
    )
    assert theirs.intervene.drop("model").equals(mine.intervene.drop("model"))
    assert mine.intervene["points"].drop_nulls().abs().max() > 0.01


def test_the_pack_has_the_ids_of_the_slices_and_is_not_written_again(slices, run):
    ids, lengths = np.load(slices / "pack/ids.npy"), np.load(slices / "pack/lengths.npy")
    sequences = pl.read_parquet(slices / "sequences.parquet")["tokens"].to_list()
    assert [row[:length].tolist() for row, length in zip(ids, lengths, strict=True)] == sequences
    assert (ids.dtype, lengths.dtype, ids.shape) == (
        np.int32,
        np.int32,
        (len(sequences), SEQ_LEN + 1),
    )
    assert not ids[np.arange(SEQ_LEN + 1) >= lengths[:, None]].any()
    facts = json.loads((slices / "pack/manifest.json").read_text())
    assert (facts["num_rows"], facts["version"]) == (TOKENS, 1)
    before = (slices / "pack/ids.npy").stat().st_mtime_ns
    slice_with_pack(slices)
    assert (slices / "pack/ids.npy").stat().st_mtime_ns == before
    done = run(
        "slice",
        "demo:validation",
        "--limit-tokens",
        TOKENS,
        "--seq-len",
        SEQ_LEN,
        "--pack",
        "--json",
        "-o",
        slices,
    )
    assert json.loads(done.stdout)["packs"] == [str(slices / "pack")]
    assert (
        "no pack of changed text: it is made with counts of all training bigrams (--counts)"
        in done.stderr
    )
    assert not recallkit.verify(slices).findings
    (slices / "pack/ids.npy").write_bytes(b"spoilt")
    assert [finding.file for finding in recallkit.verify(slices).findings] == ["pack/ids.npy"]
    slice_with_pack(slices)
    assert np.array_equal(np.load(slices / "pack/ids.npy"), ids)


def test_the_pack_of_the_same_sequences_has_the_rows_of_their_length(tmp_path):
    (tmp_path / "short.jsonl").write_text('{"text": "a short text"}\n' * 9)
    for seq_len in (64, 128):
        options = {"boundary": "document", "seq_len": seq_len, "force": True, "pack": True}
        recallkit.slice([tmp_path / "short.jsonl"], out=tmp_path / "slices", **options)
        assert np.load(tmp_path / "slices/pack/ids.npy").shape[1] == seq_len + 1


def changed(rows: np.ndarray, place: Any, values: Any) -> np.ndarray:
    rows = rows.astype(np.float64)
    rows[place] = values
    return rows


def shuffled(rows: np.ndarray) -> np.ndarray:
    order = np.random.default_rng(0).permutation(len(rows) - 1)
    return np.concatenate([rows[:-1][order], rows[-1:]])


BITS = r"over the first 4 tokens of a sequence, more than .*: bits \(.*; multiply bits by 0\.6931"
COLUMN = r"nll has the shape \(\d+, 257\); write \(8000,\) or \(\d+, 256\)"
WRONG = {
    "bits": (lambda rows: rows / np.log(2), BITS),
    "log-probabilities": (
        lambda rows: -rows,
        r"sequence 0, position 1 has -.*: log-probabilities, not NLLs; multiply by -1",
    ),
    "probabilities": (
        lambda rows: np.exp(-rows),
        "no number is above 1: probabilities, not NLLs; write -ln p",
    ),
    "one late": (lambda rows: np.roll(rows, 1, axis=1), "its NLLs stand one token too late"),
    "one early": (lambda rows: np.roll(rows, -1, axis=1), "its NLLs stand one token too early"),
    "a sequence late": (
        lambda rows: changed(rows, 7, np.roll(rows[7], 1)),
        "the NLLs of sequence 7 stand one token too late",
    ),
    "a sequence early": (
        lambda rows: changed(rows, 9, np.roll(rows[9], -1)),
        "the NLLs of sequence 9 stand one token too early",
    ),
    "two swapped": (
        lambda rows: changed(rows, [3, 4], rows[[4, 3]]),
        r"the NLLs of sequence [34] are those of sequence [34];",
    ),
    "shuffled": (shuffled, "its NLLs are not those of these tokens"),
    "not finite": (
        lambda rows: changed(rows, (2, 9), np.nan),
        "its NLL at sequence 2, position 10 is not finite",
    ),
    "too large for float32": (
        lambda rows: changed(rows, (2, 9), 1e300),
        "its NLL at sequence 2, position 10 is not finite",
    ),
    "of a program that was stopped": (
        lambda rows: changed(rows, slice(5, None), 0),
        "the NLLs of sequence 5 are all 0",
    ),
    "one column more": (lambda rows: np.pad(rows, ((0, 0), (1, 0))), COLUMN),
    "whole numbers": (
        lambda rows: rows.astype(np.int64),
        "NLLs of type int64; write float16, float32 or float64",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_numbers_that_are_not_these_nlls_are_refused_in_one_line(wrong, slices, tmp_path, run):
    spoil, problem = WRONG[wrong]
    np.save(tmp_path / "x.npy", spoil(grid(slices, nlls(slices))))
    result = run("score", f"x={tmp_path / 'x.npy'}", "--slices", slices)
    assert result.returncode == 1
    [line] = result.stderr.strip().splitlines()
    assert re.search(problem, line), line
    assert not (slices / "scores/x.parquet").exists()


def truncated(slices, path):
    WRITERS["flat.npy" if path.suffix == ".npy" else f"a{path.suffix}"](slices, nlls(slices), path)
    path.write_bytes(path.read_bytes()[:-100])


def pickled(slices, path):
    np.save(path, np.array([nlls(slices).tolist()], dtype=object), allow_pickle=True)


def weights(slices, path):
    save_file(
        {"lm_head.weight": np.zeros((4, 4), np.float32), "norm": np.zeros(4, np.float32)}, path
    )


def beside(text):
    """An array, and the content of the JSON beside it."""

    def write(slices, path):
        np.save(path, nlls(slices))
        path.with_suffix(".json").write_text(text if isinstance(text, str) else json.dumps(text))

    return write


def of_table(change=lambda rows: rows, **columns):
    """A table that is changed, or has more columns."""
    return lambda slices, path: pq.write_table(change(table(slices, nlls(slices), **columns)), path)


def impossible_rank(slices, path):
    ranks = np.where(np.arange(TOKENS) == nlls(slices).argmin(), 5, 0)
    pq.write_table(table(slices, nlls(slices), rank=ranks), path)


BACKWARDS = [("sequence", "descending")]
STATED = {"other": b"\xff", "prefix": "--5"}
FILES = [
    ("x.npy", pickled, r"cannot be read as .npy \(Array can.t be memory-mapped: Python objects"),
    ("x.npy", beside("{"), "x.json: not JSON"),
    *(
        (f"x{suffix}", truncated, f"cannot be read as {suffix}")
        for suffix in (".npy", ".parquet", ".arrow", ".safetensors")
    ),
    ("x.parquet", of_table(lambda rows: rows[:-3]), "7,997 rows for 8,000 predicted tokens"),
    (
        "x.parquet",
        of_table(lambda rows: pa.concat_tables([rows, rows[:1]])),
        "more rows for 8,000 predicted tokens",
    ),
    (
        "x.parquet",
        of_table(lambda rows: rows.sort_by(BACKWARDS)),
        r"row 0 has sequence \d+, not 0; write the rows in the order of tokens",
    ),
    (
        "x.parquet",
        of_table(lambda rows: rows.drop(["position"])),
        "no column position; write the columns sequence, position, nll",
    ),
    (
        "x.npy",
        beside({"sequences_digest": "0" * 32}),
        "NLLs of other ids: its sequences_digest is not that of",
    ),
    (
        "x.npy",
        beside({"unit": "bits"}),
        "x.json: in bits, not in nats; write natural logarithms, with unit nats",
    ),
    ("x.npy", beside({"version": 2}), "x.json: version 2 of the format"),
    ("x.npy", beside({"unit": 3}), "x.json: unit is 3, not a str"),
    ("x.npy", beside({"prefix": 9_999}), "prefix 9999 is no id of"),
    ("x.parquet", impossible_rank, "has rank 5 and an NLL of .* nats, which cannot be"),
    ("x.parquet", of_table(rank=["a"] * TOKENS), "rank is of type string, not whole numbers"),
    ("x.parquet", of_table(argmax=[None] + [1] * (TOKENS - 1)), "argmax is not a whole number"),
    ("x.parquet", of_table(argmax=[2**40] * TOKENS), "argmax is not a whole number"),
    (
        "x.parquet",
        of_table(lambda rows: rows.replace_schema_metadata(STATED)),
        "prefix is '--5', not a int",
    ),
    ("x.safetensors", weights, "weights alone do not say which model they belong to"),
]


@pytest.mark.parametrize(
    ("name", "write", "problem"), FILES, ids=[problem for *_, problem in FILES]
)
def test_files_that_are_not_of_these_slices_are_refused_in_one_line(
    name, write, problem, slices, tmp_path, run
):
    write(slices, tmp_path / name)
    result = run("score", f"x={tmp_path / name}", "--slices", slices)
    assert result.returncode == 1
    [line] = result.stderr.strip().splitlines()
    assert re.search(problem, line), line


def test_what_a_file_states_is_believed_and_what_it_does_not_is_said(slices, tmp_path, capsys):
    path = tmp_path / "bits.npy"
    np.save(path, nlls(slices) / np.log(2))
    digest = json.loads((slices / "pack/manifest.json").read_text())["sequences_digest"]
    path.with_suffix(".json").write_text(
        json.dumps({"unit": "nats", "sequences_digest": digest, "prefix": 0})
    )
    recallkit.score({"stated": path}, slices=slices)
    assert "does not state" not in (said := capsys.readouterr().err)
    assert "stated: <|endoftext|> is read before every sequence (as its file says)\n" in said
    np.save(tmp_path / "none.npy", nlls(slices))
    (tmp_path / "none.json").write_text(json.dumps({"prefix": -1}))
    np.save(tmp_path / "unstated.npy", nlls(slices))
    models = {"none": tmp_path / "none.npy", "unstated": tmp_path / "unstated.npy", "stated": path}
    shown = " ".join(str(recallkit.gap(models, slices=slices, out=tmp_path / "gap")).split())
    assert (
        "Read before every sequence: none nothing, stated <|endoftext|> (bos= makes them equal)"
        in shown
    )
    capsys.readouterr()
    np.save(tmp_path / "half.npy", grid(slices, nlls(slices)).astype(np.float16))
    summary = recallkit.score({"half": tmp_path / "half.npy"}, slices=slices)
    said = capsys.readouterr().err
    unstated = "does not state its unit or a digest of its ids or what was read before them"
    assert f"{unstated}; its numbers fit these tokens, with a mean of 3." in said
    assert "half: float16 has rounded each NLL, by up to 0.0039 nats" in said
    assert summary.frame["accuracy"].to_list() == [None]
    exact, rounded = nlls(slices), pl.read_parquet(slices / "scores/half.parquet")["nll"].to_numpy()
    assert 0 < np.abs(exact - rounded).max() <= 0.00390625


def test_a_file_that_has_changed_is_read_again_and_one_that_is_gone_is_remembered(
    slices, tmp_path, capsys
):
    path = tmp_path / "again.npy"
    for digit, model in enumerate(("zoo:hyena", "zoo:attention")):
        np.save(path, nlls(slices, model))
        summary = recallkit.score({"again": path}, slices=slices)
        assert summary.frame["nll_nats"][0] == pytest.approx(nlls(slices, model).mean(), rel=1e-6)
        assert (f"{path} has changed, and is read again" in capsys.readouterr().err) == bool(digit)
    path.unlink()
    assert recallkit.score({"again": path}, slices=slices).frame.equals(summary.frame)
    assert "again: not on this machine; its existing scores are used" in capsys.readouterr().err
    with pytest.raises(UserError, match="already made with other options"):
        np.save(tmp_path / "other.npy", nlls(slices))
        recallkit.score({"again": tmp_path / "other.npy"}, slices=slices)


def test_a_file_that_is_replaced_while_it_is_read_is_refused(slices, tmp_path, monkeypatch):
    path = tmp_path / "x.npy"
    np.save(path, nlls(slices))
    read = recorded.labelled_rows

    def replaced(tokens):
        np.save(tmp_path / "new.npy", nlls(slices) * 1.01)
        (tmp_path / "new.npy").replace(path)
        return read(tokens)

    monkeypatch.setattr(recorded, "labelled_rows", replaced)
    with pytest.raises(
        UserError, match="it changed while it was read; score it again as it is now"
    ):
        recallkit.score({"x": path}, slices=slices)
    assert not list((slices / "scores").glob("x.*"))


def test_ranks_are_those_of_scores_and_a_page_calls_no_first_choice_right_that_is_not_recorded(
    slices, tmp_path, run
):
    scores = pl.read_parquet(next((slices / "scores").glob("zoo-hyena.*.parquet")))
    np.save(tmp_path / "nll.npy", nlls(slices))
    pq.write_table(
        table(slices, nlls(slices), rank=scores["rank"].to_numpy()), tmp_path / "rank.parquet"
    )
    models = ["zoo:hyena", tmp_path / "nll.npy", tmp_path / "rank.parquet"]
    accuracy = recallkit.score(models, slices=slices).frame["accuracy"].to_list()
    assert accuracy == [accuracy[0], None, accuracy[0]]
    assert accuracy[0] > 0.3
    [row] = json.loads(run("score", models[1], "--slices", slices, "--json").stdout)
    assert (row["num_rows"], row["dtype"], "batch_tokens" in row) == (TOKENS, None, False)
    assert not run("gap", *models, "--slices", slices, "-o", slices / "gap/recorded").returncode
    assert not run("report", slices / "gap/recorded", "-o", tmp_path / "page.html").returncode
    _, _, page = (tmp_path / "page.html").read_text().partition('"predicted":')
    _, nll, rank = json.JSONDecoder().raw_decode(page)[0]
    assert set(nll) == {excerpts.UNKNOWN}
    assert set(rank) == {excerpts.RIGHT, excerpts.WRONG}


def test_a_guess_tells_nothing_and_is_taken(slices, tmp_path):
    """NLLs of an untrained model: above the unigrams' entropy, hardly different, and nats all the
    same."""
    np.save(
        tmp_path / "guess.npy",
        np.log(4096) + 0.1 * np.random.default_rng(0).standard_normal(TOKENS),
    )
    assert recallkit.score({"guess": tmp_path / "guess.npy"}, slices=slices).frame["nll_nats"][
        0
    ] == pytest.approx(np.log(4096), abs=0.01)


NEEDS_MODEL = {
    "ablate": lambda path, slices, labelled: recallkit.ablate(path, slices=labelled),
    "eval_recall": lambda path, *_: recallkit.eval_recall([path], tasks=["swde"]),
    "mqar": lambda path, *_: recallkit.eval_mqar([path]),
    "check_scores": lambda path, slices, _: [
        recallkit.score(path, slices=slices),
        recallkit.check_scores(path, slices=slices),
    ],
}
OPTIONS = {
    "--divergence": "a file of recorded NLLs gives no predictions over the whole vocabulary",
    "--context-gain 32": "a file of recorded NLLs has no scores from the last ids alone",
    "--text no.jsonl": (
        "recorded NLLs are of a text that is sliced already; give its slice directory in place "
        "of the text"
    ),
    "x=x.npy,dtype=bfloat16": "x: dtype= is of a model that is run",
    "x=x.npy,context=64": "x: context= is of a model that is run",
    "x=x.npy,tokenizer=bytes": "x: tokenizer= is of a model that is run",
}


@pytest.mark.parametrize("name", NEEDS_MODEL)
def test_what_needs_the_model_says_so(name, slices, few_slices, tmp_path):
    np.save(tmp_path / "x.npy", nlls(slices))
    with pytest.raises(
        UserError,
        match="recorded NLLs, and this needs the model itself; give the model, or leave it out",
    ):
        NEEDS_MODEL[name](str(tmp_path / "x.npy"), slices, few_slices)


@pytest.mark.parametrize("options", OPTIONS)
def test_options_that_need_the_model_are_refused(options, few_slices, tmp_path, run, monkeypatch):
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", np.zeros(3))
    models = ["control:bigram"] if "=" in options else ["control:bigram", "y=x.npy"]
    result = run("gap", *models, *options.split(), "--slices", few_slices)
    assert OPTIONS[options] in result.stderr
    assert result.returncode in (1, 2)
