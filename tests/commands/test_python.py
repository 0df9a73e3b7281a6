"""`import recallkit`: light until a function is asked for, the same work found again, frames that
agree with the files."""

from __future__ import annotations

import ast
import builtins
import inspect
import pkgutil
import re
import shutil
import subprocess
import sys
from pathlib import Path

import duckdb
import polars as pl
import pyarrow.parquet as pq
import pytest

import recallkit
from recallkit.scoring import score_path
from tests.conftest import ROOT, made_up_texts, write_jsonl

CONTROLS = ["control:recall", "control:bigram", "control:unigram"]

# -------------------------------------------------------------------------------------- the package


def test_no_name_is_a_modules_name_too():
    """Whoever imports a module of the package puts it in place of a function of the same name."""
    modules = {module.name for module in pkgutil.iter_modules(recallkit.__path__)}
    assert modules & set(recallkit.__all__) == set()


def test_every_name_is_there_and_told():
    for name in recallkit.__all__:
        found = getattr(recallkit, name)
        assert name in dir(recallkit)
        assert name == "__version__" or len(found.__doc__) > 40
    assert dir(recallkit) == sorted(recallkit.__all__), "what a notebook completes"
    assert slice is builtins.slice
    with pytest.raises(AttributeError, match="no_such_stage"):
        _ = recallkit.no_such_stage


def test_what_type_checkers_see_is_what_is_there():
    tree = ast.parse(Path(recallkit.__file__).read_text(encoding="utf-8"))
    block = next(
        node
        for node in tree.body
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    seen = {alias.asname or alias.name: node.module for node in block.body for alias in node.names}
    assert {*seen, "UserError", "__version__"} == set(recallkit.__all__)
    for name, module in seen.items():
        assert getattr(recallkit, name) is getattr(
            sys.modules[module], "slice_" if name == "slice" else name
        )


FUNCTIONS = {
    name: getattr(recallkit, name)
    for name in recallkit.__all__
    if inspect.isfunction(getattr(recallkit, name))
}


def test_every_argument_has_a_type():
    for name, function in FUNCTIONS.items():
        signature = inspect.signature(function)
        assert signature.return_annotation is not inspect.Signature.empty, name
        assert [
            p.name for p in signature.parameters.values() if p.annotation is inspect.Parameter.empty
        ] == [], name


def test_an_editor_sees_the_signatures(tmp_path):
    """mypy on a script of a user's, without following what the package itself imports."""
    script = tmp_path / "script.py"
    wrong = {
        "recallkit.slice('a', max_cout=5)": "max_count",
        "recallkit.gap('a', 'b', causal=True)": "causal",
        "recallkit.no_such_stage": "no_such_stage",
    }
    right = [
        "recallkit.slice('a', 'b', max_count=5)",
        "recallkit.track('a', 'b', device='cpu', stride=512, workers=2)",
        "recallkit.tokens('s', {'a': 'zoo:mamba'})",
        "recallkit.gap({'a': 'zoo:mamba', 'b': 'm'})",
        "recallkit.UserError('so')",
    ]
    script.write_text("\n".join(["import recallkit", *right, *wrong]) + "\n", encoding="utf-8")
    options = ["--follow-imports=skip", "--config-file=", f"--cache-dir={tmp_path / 'cache'}"]
    sources = [
        ROOT / "recallkit" / name
        for name in ("__init__.py", "errors.py", "declarations.py", "options.py")
    ]
    sources += sorted((ROOT / "recallkit" / "commands").glob("*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, script, *sources],
        capture_output=True,
        text=True,
        check=False,
    )
    found = [
        line
        for line in done.stdout.splitlines()
        if line.startswith(str(script)) and ": error:" in line
    ]
    assert len(found) == len(wrong), done.stdout
    for line, word in zip(found, wrong.values(), strict=True):
        assert word in line


# ----------------------------------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("slice", {"sources": []}),
        ("profile", {"slices": "s", "seq_len": 64}),
        ("score", {"models": []}),
        ("gap", {"reference": "control:recall", "models": ["control:recall"], "slices": "s"}),
        ("published", {"table": "missing.csv"}),
        ("eval_stock", {"tasks": []}),
        ("tokens", {"slices": "missing"}),
        ("read_comparison", {"folder": "missing"}),
        ("write_report", {"folder": "missing"}),
    ],
)
def test_a_mistake_is_a_user_error_and_makes_nothing(name, arguments, home, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(recallkit.UserError) as caught:
        getattr(recallkit, name)(**arguments)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_place_of_a_folder_is_named(small_slices, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(
        recallkit.UserError, match=r"file: a file, but a directory is expected; give another name"
    ):
        recallkit.slice(small_slices.parent / "valid.jsonl", tmp_path / "file" / "out", seq_len=64)
    assert [(tmp_path / "file").read_text(), *tmp_path.iterdir()] == ["mine", tmp_path / "file"]


# ---------------------------------------------------------------------------------- text and labels


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    write_jsonl(folder / "train.jsonl", made_up_texts(40, 100, seed=1), "books")
    write_jsonl(folder / "valid.jsonl", made_up_texts(10, 100, seed=2), "books")
    return folder


def test_the_command_line_finds_what_a_function_made(run, home, tmp_path, monkeypatch):
    """Both mean the same text, counts and threshold, and the same place."""
    monkeypatch.chdir(tmp_path)
    assert (
        recallkit.slice(tokenizer="bytes", limit_tokens=2000, seq_len=32).frame["source"][0]
        == "ALL"
    )
    assert (
        "is complete: reused"
        in run("slice", "--tokenizer", "bytes", "--limit-tokens", 2000, "--seq-len", 32).stderr
    )


def test_counts_are_those_of_the_table(small_slices):
    counts = small_slices.parent / "counts.duckdb"
    with duckdb.connect(str(counts), read_only=True) as connection:
        wanted = connection.sql(
            "SELECT first, second, count FROM bigrams ORDER BY count DESC, first, second"
        ).fetchall()
    assert recallkit.bigrams(counts).rows() == wanted
    assert recallkit.bigrams(str(counts), limit=3).rows() == wanted[:3]


def test_counting_tells_what_was_counted(corpus, tmp_path):
    counted = recallkit.count(
        corpus / "train.jsonl",
        tmp_path / "c.duckdb",
        tokenizer="bytes",
        export=tmp_path / "c.parquet",
    )
    row = counted.frame.row(0, named=True)
    found = recallkit.bigrams(row["path"])
    assert row["num_bigrams"] == len(found) == len(pl.read_parquet(tmp_path / "c.parquet"))
    assert (row["tokenizer"], row["boundary"], row["num_documents"], row["only"]) == (
        "bytes",
        "pack",
        40,
        None,
    )
    again = recallkit.count(
        import_file=tmp_path / "c.parquet", out=tmp_path / "d.duckdb", training_tokens="1M"
    )
    assert again.frame["num_tokens"].item() == 1_000_000
    assert recallkit.bigrams(tmp_path / "d.duckdb").equals(found)
    with pytest.raises(recallkit.UserError, match=re.escape(str(tmp_path / "c."))):
        recallkit.count(import_file=tmp_path / "c.parquet", out=tmp_path / "c.parquet")


def test_a_slices_summary_adds_up(small_slices):
    path = small_slices / "tokens.parquet"
    labels = pl.read_parquet(path)
    given = [small_slices.parent / name for name in ("valid.jsonl", "other.jsonl")]
    found = recallkit.slice(
        given, small_slices, counts=small_slices.parent / "counts.duckdb", max_count=20, seq_len=64
    ).frame
    assert found["source"].to_list() == ["ALL", "books", "letters"]
    for row in found.iter_rows(named=True):
        own = labels.filter((pl.col("source") == row["source"]) | (row["source"] == "ALL"))
        assert (row["tokens"], row["repeated"], row["ar_hits"]) == (
            len(own),
            own["repeated"].sum(),
            own["ar_hit"].sum(),
        )


def test_texts_of_ids_make_up_the_text(small_slices):
    texts = recallkit.token_texts(small_slices)
    read = (
        recallkit.tokens(small_slices)
        .select("sequence", "token")
        .collect()
        .join(texts, on="token", how="left", maintain_order="left")
    )
    joined = (
        read.group_by("sequence", maintain_order=True)
        .agg(pl.col("text").str.join())
        .sort("sequence")["text"]
        .to_list()
    )
    whole = pq.read_table(small_slices / "sequences.parquet", columns=["text"])["text"].to_pylist()
    assert all(
        text.endswith(part) and len(text) - len(part) < 20
        for text, part in zip(whole, joined, strict=True)
    )


# ------------------------------------------------------------------------------------------- models


@pytest.fixture(scope="module")
def scored(small_slices, tmp_path_factory):
    """A copy of the small slices with scores of three control models, and what `score` said of
    them."""
    folder = tmp_path_factory.mktemp("scored") / "slices"
    shutil.copytree(small_slices, folder, ignore=shutil.ignore_patterns("scores", "gap"))
    return folder, recallkit.score(CONTROLS, slices=folder)


def slow_tokens(folder, models):
    """The same table by a join on keys, read without our own code."""
    joined = pl.read_parquet(folder / "tokens.parquet")
    for name, model in models.items():
        scores = pl.read_parquet(score_path(folder, model)).select(
            "sequence", "position", "nll", "argmax", "rank"
        )
        joined = joined.join(
            scores.rename({kind: f"{kind}_{name}" for kind in ("nll", "argmax", "rank")}),
            on=["sequence", "position"],
            how="left",
        )
    return joined.sort("sequence", "position")


def test_tokens_are_named_for_their_models(scored):
    folder, _ = scored
    labels = pl.read_parquet_schema(folder / "tokens.parquet")
    assert recallkit.tokens(folder).collect_schema().names() == list(labels)
    named = recallkit.tokens(folder, "control:bigram").collect_schema().names()
    assert named == [*labels, "nll_control:bigram", "argmax_control:bigram", "rank_control:bigram"]
    lazy, slow = (
        recallkit.tokens(str(folder), CONTROLS),
        slow_tokens(folder, {name: name for name in CONTROLS}),
    )
    assert lazy.collect().equals(slow)
    condition, columns = (
        pl.col("nll_control:bigram") > pl.col("nll_control:recall"),
        ["token", "rank_control:bigram", "source"],
    )
    assert (
        lazy.filter(condition)
        .select(columns)
        .slice(5, 90)
        .collect()
        .equals(slow.filter(condition).select(columns).slice(5, 90))
    )


def test_tokens_refuses_what_is_not_scored_or_of_other_sequences(scored, corpus, tmp_path):
    folder, _ = scored
    with pytest.raises(
        recallkit.UserError,
        match=r"zoo:mamba: not scored yet; recallkit\.score\('zoo:mamba', slices=",
    ):
        recallkit.tokens(folder, ["control:bigram", "zoo:mamba"])
    recallkit.slice(corpus / "valid.jsonl", tmp_path / "s", seq_len=64, limit_tokens=500)
    # without counts, too
    assert recallkit.tokens(tmp_path / "s").select(pl.len()).collect().item() == 500
    shutil.copytree(folder / "scores", tmp_path / "s" / "scores")
    with pytest.raises(recallkit.UserError, match="scores of other sequences"):
        recallkit.tokens(tmp_path / "s", "control:bigram")


def test_a_gap_is_read_back_and_drawn(scored, tmp_path):
    folder, _ = scored
    tables = recallkit.gap(CONTROLS[0], CONTROLS[1], slices=folder, out=tmp_path / "out")
    comparison = recallkit.read_comparison(tmp_path / "out", slices=folder)
    assert isinstance(tables, recallkit.GapTables)
    assert comparison.reference == CONTROLS[0]
    assert comparison.tables.gap.equals(tables.gap)
    charts = recallkit.figures(comparison)
    assert {"by_count", "by_distance", "by_match"} <= set(charts)
    charts["by_count"].save(tmp_path / "chart.svg")
    drawn = (tmp_path / "chart.svg").read_text(encoding="utf-8")
    assert drawn.startswith("<svg")
    with pytest.raises(
        recallkit.UserError, match=f"no such model in these figures; choose from {CONTROLS[1]}"
    ):
        recallkit.figures(comparison, models=["nobody"])
    with pytest.raises(
        recallkit.UserError, match="width: 0: give column, text, or inches from 2 to 20"
    ):
        recallkit.figures(comparison, width=0)
    assert "var(--" not in drawn  # colours of a page mean nothing in a file
    page = recallkit.write_report(tmp_path / "out", tmp_path / "page.html", slices=folder)
    assert page == tmp_path / "page.html"
    assert CONTROLS[0] in page.read_text(encoding="utf-8")


def test_printed_perplexities(tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("model,all,ar,other\nattention,12.99,2.41,14.91\nhyena,15.13,9.0,\n")
    published = recallkit.published(str(table), ar_share=0.068)
    assert isinstance(published, recallkit.PublishedGap)
    assert published.groups[0].ar_share == 0.068
    assert recallkit.published(table, reference="attention").groups[0].reference == "attention"
    assert recallkit.published("zoology:4").frame["model"].to_list().count("Attention") == 3
    assert recallkit.paper_table("yun:2").filter(depth=2)["strided_union"].item() == 12.4


# ----------------------------------------------------------------------------------------- the page

PAGE = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", PAGE, re.DOTALL)


def ran(code, names):
    """What a notebook shows of a cell: what is printed, and the value of its last line."""
    shown = []
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    names["print"] = lambda *values: shown.append(" ".join(map(str, values)))
    exec(compile(tree, "docs/python.md", "exec"), names)
    value = (
        eval(compile(ast.Expression(last.value), "docs/python.md", "eval"), names) if last else None
    )
    return "\n".join([*shown, *([] if value is None else [str(value)])])


def heads(output):
    """The lines of an output that do not depend on the text that was read: of tables the columns
    and their types."""
    lines = output.strip().splitlines()
    return (
        [re.sub(r"\s+", " ", line) for line in lines[2:5]]
        if lines and lines[0].startswith("shape:")
        else lines
    )


def test_the_page_shows_what_happens(home, corpus, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train").mkdir()
    shutil.copy(corpus / "train.jsonl", tmp_path / "train" / "a.jsonl")
    names = {}
    assert sum("30k" in code for code, _ in BLOCKS) == 1
    for code, output in BLOCKS:
        found = ran(code.replace("30k", "2k"), names)  # as much text as is scored in seconds
        if output:
            assert heads(found) == heads(output), code
    assert (tmp_path / "occurrences.svg").is_file()


def test_the_page_names_every_function_and_no_other():
    for name in FUNCTIONS:
        assert re.search(rf"\b{name}\b", PAGE), f"docs/python.md does not name {name}"
    for name in re.findall(r"recallkit\.(\w+)", PAGE):
        assert name in recallkit.__all__, f"docs/python.md names recallkit.{name}"


def test_the_builtin_text_is_cut_as_the_zoo_reads_it(home):
    """Whatever else is said of it; text of one's own is cut as in the papers."""
    from recallkit import builtin, config
    from recallkit.commands.text import Slice

    for said in ({}, {"limit_tokens": 1000}, {"boundary": "document"}):
        assert (
            builtin.resolve_slice_defaults(Slice(None, **said), is_builtin=False).seq_len
            == config.BUILTIN_SEQ_LEN
        )
        assert (
            builtin.resolve_slice_defaults(Slice(("a.jsonl",), **said), is_builtin=False).seq_len
            == config.SEQ_LEN
        )
