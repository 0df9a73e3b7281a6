"""Exported tables and figures through a real TeX: each is printed, fits the column that it is in,
and can be referred to."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from recallkit import attribution, published
from recallkit.attribution.comparison import read_comparison
from recallkit.attribution.view import ComparisonView
from recallkit.display.cells import Struck
from recallkit.display.figure_files import save_figures
from recallkit.display.tables import Table
from recallkit.models.spec import list_models
from recallkit.papers.view import published_tables
from recallkit.slicing.definitions import parse_slices
from tests.display.test_charts import figure
from tests.display.test_tables import HOSTILE

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("pdflatex") is None,
        reason="needs pdflatex: apt-get install texlive-latex-recommended",
    ),
]
PAPER = r"""\documentclass[%s]{article}
\usepackage[T1]{fontenc}
\usepackage{booktabs,graphicx}
\begin{document}
%s
\clearpage
See %s.
\end{document}
"""
LAYOUTS = ["10pt", "10pt,twocolumn"]
LONG = [
    "models/of/mine/attention-360m-slimpajama-100k-steps",
    "organisation/some-model-of-2.8b-parameters-instruct",
    "zoo:base-conv-selective",
]
CONTROLS = ["control:recall", "control:bigram", "control:unigram"]


@pytest.fixture(scope="module")
def tables(small_slices, tmp_path_factory) -> dict[str, Table]:
    """What `gap` and `published` export, of models with long names, and a table of names that are
    none."""
    folder = tmp_path_factory.mktemp("results")
    names = [name.rpartition("/")[2].partition(":")[0] for name in LONG]
    specs = list_models(
        [f"{name}={control}" for name, control in zip(names, CONTROLS, strict=True)]
    )
    out = folder / "gap"
    attribution.gap(
        specs[0],
        specs[1:],
        small_slices,
        out,
        question=attribution.GapQuestion(parse_slices(["far=distance > 8", "all"])),
    )
    ends = {f"{name}_ci_{end}": 0.1 for name in ("points", "retained") for end in ("low", "high")}
    causal = {name: {"points": 0.1, "retained": 0.1, **ends} for name in names}
    shown = ComparisonView(read_comparison(out), causal).display_tables
    assert "causal" in shown
    printed = {f"gap-{name}": table for name, table in shown.items()}
    printed |= {
        f"zoology-4-{name}": table
        for name, table in published_tables(published("zoology:4")).items()
    }
    rows = [
        [name, "1.00", Struck("-252.7 %"), "2.0 to 3.1 %"] for name in (*HOSTILE, *LONG, "x" * 90)
    ]
    groups = [("", 1), ("perplexity", 1), ("gap_{%}", 2)]
    return printed | {
        "hostile": Table(
            "A title & 50 %", ["model", *LONG], rows, caption="\n".join(HOSTILE), groups=groups
        )
    }


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_are_printed_within_a_column_and_can_be_referred_to(tables, tmp_path, layout):
    sources = {name: table.latex(name) for name, table in tables.items()}
    others = {name for name, source in sources.items() if "XeLaTeX" in source}
    assert others <= {"hostile"}, "pdfLaTeX has no such letters"
    body = "\n".join(
        source.replace("\u202e", "") for name, source in sources.items() if name not in others
    )
    compile_paper(tmp_path, layout, body, [f"tab:{name}" for name in sources if name not in others])


def test_figures_fit_their_column_and_can_be_referred_to(tmp_path):
    [*_, source] = save_figures(
        [replace(figure("by_count"), caption="Of 5 % & a_b. More.")],
        tmp_path / "figures",
        inches=3.25,
    )
    body = r"\setlength{\textwidth}{6.75in}\setlength{\columnwidth}{3.25in}" + source.read_text(
        encoding="utf-8"
    )
    compile_paper(tmp_path, "10pt,twocolumn", body, ["fig:by_count"])


def compile_paper(folder: Path, layout: str, body: str, labels: list[str]) -> None:
    """Fails if a paper that refers to these labels has an error, a reference to nothing, or a line
    that is too wide."""
    references = ", ".join(rf"\ref{{{label}}}" for label in labels)
    (folder / "paper.tex").write_text(PAPER % (layout, body, references), encoding="utf-8")
    for _ in range(2):
        done = subprocess.run(
            ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "paper.tex"],
            cwd=folder,
            capture_output=True,
            check=False,
        )
        log = (folder / "paper.log").read_text(encoding="latin-1")
        assert done.returncode == 0, log[-2000:]
    assert not re.findall(r"Overfull \\hbox[^\n]*", log)
    assert "undefined" not in log
    assert "multiply defined" not in log
    assert "Missing character" not in log
    assert (folder / "paper.pdf").read_bytes().startswith(b"%PDF")
