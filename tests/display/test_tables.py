"""Tables as Markdown and LaTeX: a reader of either finds the text of every cell again, whatever it
holds."""

from __future__ import annotations

import re
from html.parser import HTMLParser

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from recallkit.display.cells import Struck
from recallkit.display.tables import LATEX_HEAD, MARKDOWN_HEAD, Table
from recallkit.errors import printable

HOSTILE = [
    "a|b", "*x*", "_y_", "`z`", "<script>alert(1)</script>", "&amp;", "[a](http://evil.example)", "![x](y)", "\\", "\\|", "~~gone~~",
    "# heading", "$x^2$", "50 % & more", "a_{b}", "{", "}", "^", "\\input{/etc/passwd}", "[4pt] x", "* star", "a--b", "a---b", "it''s",
    '"quoted"', "<!-- hidden", "http://example.org", "www.example.org", "line\nbreak", "\x1b[31mred", "\u202egnirts", "Zoë", "",
]  # fmt: skip
CELLS = st.one_of(
    st.sampled_from(HOSTILE),
    st.text(max_size=12),
    st.text("\\&%$#_{}[]*~^`\"–…<>|-'!+.():/ a1\n", max_size=16),
)


class Cells(HTMLParser):
    """The texts of the cells, the tags used, and the text of everything."""

    def __init__(self) -> None:
        super().__init__()
        self.cells: list[str] = []
        self.tags: list[str] = []
        self.inside = False

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        if tag in ("td", "th"):
            self.inside = True
            self.cells.append("")

    def handle_endtag(self, tag):
        self.inside = self.inside and tag not in ("td", "th")

    def handle_data(self, data):
        if self.inside:
            self.cells[-1] += data


def rendered(table: Table) -> Cells:
    html = MarkdownIt("commonmark").enable(["table", "strikethrough"]).render(table.markdown())
    found = Cells()
    found.feed(html.replace("<!-- made by recallkit -->", ""))
    return found


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=3), CELLS, CELLS)
def test_markdown_shows_every_cell_as_it_is(rows, title, caption):
    table = Table(title, ["first", "second"], rows, caption=caption or None)
    found = rendered(table)
    assert found.cells == [printable(cell) for row in (table.headers, *rows) for cell in row]
    used = set(found.tags) - {"table", "thead", "tbody", "tr", "th", "td", "p", "strong"}
    assert not used, "data became markup"


def test_addresses_in_names_are_no_links_on_github():
    """GitHub links bare addresses; a backslash inside keeps it from seeing one."""
    shown = Table("t", ["a"], [["http://evil.example"], ["www.evil.example"]]).markdown()
    assert "http://" not in shown
    assert "www." not in shown


UNESCAPED = re.compile(
    r"\\textbackslash\{\}|\\textasciitilde\{\}|\\textasciicircum\{\}|\\textasciigrave\{\}|\\textless\{\}|\\textgreater\{\}|\\textbar\{\}"
    r"|\\char34\{\}|\\dots\{\}|\\textendash\{\}|\\[&%$#_{}]|\{[\[\]*]\}|-\{\}|'\{\}|\$-\$|[^\\&%$#_{}~^\"`]"
)
MEANING = {
    r"\textbackslash{}": "\\", r"\textasciitilde{}": "~", r"\textasciicircum{}": "^", r"\textasciigrave{}": "`", r"\textless{}": "<",
    r"\textgreater{}": ">", r"\textbar{}": "|", r"\char34{}": '"', r"\dots{}": "…", "{[}": "[", "{]}": "]", "{*}": "*", "-{}": "-",
    "'{}": "'", r"\textendash{}": "–", "$-$": "-",
}  # fmt: skip


def tex_text(source: str) -> str:
    """What LaTeX prints for text with our escapes. Fails where a character has a meaning that was
    not taken from it."""
    position, text = 0, ""
    assert "--" not in source
    while position < len(source):
        found = UNESCAPED.match(source, position)
        assert found, f"{source!r} at {position}"
        assert found[0] not in ("[", "]", "*", "<", ">", "|", "–", "…"), source
        text += MEANING.get(found[0], found[0][1] if found[0][0] == "\\" else found[0])
        position = found.end()
    return text


def tex_rows(source: str) -> list[list[str]]:
    body = source.split("\\toprule\n")[1].split("\n\\bottomrule")[0]
    lines = [line for line in body.split("\n") if line != "\\midrule"]
    assert all(line.endswith(r" \\") for line in lines)
    return [re.split(r"(?<!\\) & ", line.removesuffix(r" \\")) for line in lines]


@given(st.lists(st.tuples(CELLS, CELLS), min_size=1, max_size=3), CELLS, CELLS)
@example([("-–", "–-"), ("––", "---")], "–", "-–")
def test_latex_prints_every_cell_as_it_is(rows, title, caption):
    source = Table(title, ["first", "second"], rows, caption=caption).latex()
    found = tex_rows(source)
    for row, given_ in zip(found[1:], rows, strict=True):
        for cell, text in zip(row, map(printable, given_), strict=True):
            folded = re.fullmatch(r"\\shortstack\[[lr]\]\{(.*)\}", cell)
            assert bool(folded) is (len(text) > 28)
            shown = (
                "".join(tex_text(line) for line in folded[1].split(r"\\"))
                if folded
                else tex_text(cell)
            )
            assert "".join(shown.split()) == "".join(text.split()) if folded else shown == text
    for line in source.split("\n"):
        assert not re.match(r"\s*[\[*(]", line.split(" & ")[0]) or line.startswith("("), (
            "an argument of the row's end before"
        )
    shown = re.search(
        r"\\caption\{(.*)\}\n\\label\{tab:result\}\n\\end\{table\}\n$", source, re.DOTALL
    )
    assert shown
    assert "\n" not in shown[1]
    tex_text(shown[1])


def test_figures_below_nothing_have_a_minus_and_names_a_hyphen():
    row = ["zoo:base-conv-2", "-0.7 %", "-2.0 to -0.6 %", "1e-05", "(-3)", "–"]
    assert (
        r"zoo:base-conv-2 & $-$0.7 \% & $-$2.0 to $-$0.6 \% & 1e-05 & ($-$3) & \textendash{} \\"
        in Table("t", list("abcdef"), [row]).latex()
    )


def test_long_names_are_folded_behind_signs_and_headers_where_they_say():
    name = "organisation/some-model-with-a-name-of-2.8b-parameters-instruct"
    source = Table(
        "t",
        ["model", "distance\n1 to 256", "zoo:base-conv-selective"],
        [[name, "▁▂", Struck("-1.0 %")], ["x" * 70, "", ""]],
    ).latex("gap")
    assert (
        r"\shortstack[l]{organisation/some-model-\\with-a-name-of-2.8b-\\parameters-instruct} & ▁▂"
        in source
    )
    assert (
        r"model & \shortstack[r]{distance\\1 to 256} & \shortstack[r]{zoo:base-conv-\\selective} \\"
        in source
    )
    assert rf"\shortstack[l]{{{'x' * 28}\\{'x' * 28}\\{'x' * 14}}} &" in source
    assert source.endswith("\\label{tab:gap}\n\\end{table}\n")
    assert all(
        line.startswith(("%", r"\providecommand"))
        for line in source.partition("\\begin{table}")[0].splitlines()
    )


def test_headings_span_their_columns_as_the_papers_print_them():
    table = Table(
        "Gap",
        ["model", "all", "AR", "other", "share"],
        [["a", "1", "2", "3", "4"]],
        groups=[("", 1), ("perplexity", 3), ("gap", 1)],
    )
    lines = table.latex().split("\n")
    at = lines.index("\\toprule")
    assert (
        lines[at + 1]
        == r"\multicolumn{1}{c}{} & \multicolumn{3}{c}{perplexity} & \multicolumn{1}{c}{gap} \\"
    )
    assert lines[at + 2] == r"\cmidrule(lr){2-4} \cmidrule(lr){5-5}"
    assert lines[at + 3] == r"model & all & AR & other & share \\"
    assert "{lrrrr}" in table.latex()
    assert "perplexity" not in table.markdown()


def test_files_begin_as_they_are_known_and_say_what_they_need():
    table = Table("t", ["a"], [["模型"]])
    assert table.markdown().startswith(MARKDOWN_HEAD)
    assert table.latex().startswith(LATEX_HEAD)
    assert "XeLaTeX" in table.latex()
    assert "XeLaTeX" not in Table("t", ["a"], [["modèle – 5 %"]]).latex()


def test_figures_that_mean_nothing_are_struck_out_and_no_others():
    table = Table(
        "t",
        ["model", "share"],
        [["a~~b", Struck("-252.7 %")], ["c", "3.1 %"]],
        groups=[("", 1), ("gap", 1)],
    )
    assert "| a\\~\\~b | ~~-252.7 %~~ |" in table.markdown()
    found = rendered(table)
    assert found.cells[2:] == ["a~~b", "-252.7 %", "c", "3.1 %"]
    assert found.tags.count("s") == 1
    source = table.latex()
    assert r"a\textasciitilde{}\textasciitilde{}b & \recallkitstruck{$-$252.7 \%} \\" in source
    assert source.count(r"\recallkitstruck{") == 1
    assert source.count(r"\providecommand{\recallkitstruck}") == 1
    assert "recallkitstruck" not in Table("t", ["a"], [["1 %"]]).latex()
