"""The documentation as a site: built without a warning and without torch, whole, as GitHub shows
the documents, and nothing is fetched."""

from __future__ import annotations

import inspect
import json
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest
from markdown_it import MarkdownIt

import recallkit
from tests.conftest import ROOT
from tests.test_structure import documents

pytest.importorskip("material", reason="needs mkdocs-material: make test has it")
pytest.importorskip(
    "mkdocstrings_handlers.python", reason="needs mkdocstrings-python: make test has it"
)

BUILD = """
import atexit, runpy, sys
atexit.register(lambda: print(sorted({"torch", "numpy", "polars", "transformers"} & set(sys.modules))))
runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    words = [
        "build",
        "--strict",
        "--config-file",
        str(ROOT / "docs/mkdocs.yml"),
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        [sys.executable, "-c", BUILD, *words],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[]\n"), done.stderr
    return folder


def place(site: Path, document: Path) -> Path:
    """The page of a document."""
    name = document.relative_to(ROOT).with_suffix(".html").as_posix()
    return site / name.replace("README.html", "index.html")


class Article(HTMLParser):
    """Tags and text of what is between <article> and </article>, without the marks that only the
    site has."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: Counter[str] = Counter()
        self.text: list[str] = []
        self.inside = False
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.inside |= tag == "article"
        if self.inside:
            self.tags["s" if tag == "del" else tag] += 1

    def handle_endtag(self, tag):
        self.inside &= tag != "article"

    def handle_data(self, data):
        if self.inside:
            self.text.append(data)

    def words(self) -> str:
        return re.sub(r"[\s¶]+", "", "".join(self.text))


AS_ON_GITHUB = (
    "h1",
    "h2",
    "h3",
    "h4",
    "ul",
    "ol",
    "li",
    "table",
    "tr",
    "th",
    "td",
    "pre",
    "code",
    "img",
    "strong",
    "em",
    "s",
)


def test_pages_have_what_github_shows(site):
    """Lists, tables and code blocks: mkdocs reads another Markdown."""
    for document in (path for path in documents() if path.name != "api.md"):
        page = Article(place(site, document).read_text(encoding="utf-8"))
        markdown = document.read_text(encoding="utf-8")
        github = Article(
            "<article>" + MarkdownIt("gfm-like", {"linkify": False}).render(markdown) + "</article>"
        )
        assert {tag: page.tags[tag] for tag in AS_ON_GITHUB} == {
            tag: github.tags[tag] for tag in AS_ON_GITHUB
        }, document.name
        assert page.words() == github.words(), document.name


def section(site: Path, name: str) -> str:
    """What the page of the API says of a public name."""
    html = (site / "docs/api.html").read_text(encoding="utf-8")
    (start,) = [found.start() for found in re.finditer(f'id="recallkit.{name}"', html)]
    end = re.compile(r'id="recallkit\.\w+"|<h2 ').search(html, start + 10)
    return Article(f"<article>{html[start : end.start() if end else len(html)]}").words()


def test_every_public_name_is_explained(site):
    for name in sorted(set(recallkit.__all__) - {"__version__"}):
        check_explained(name, section(site, name))


def check_explained(name: str, said: str) -> None:
    thing = getattr(recallkit, name)
    doc = re.sub(r"docs/([\w-]+\.md)", r"\1", inspect.getdoc(thing).replace("`", ""))
    first, _, rest = doc.partition("\n\n")
    assert re.sub(r"\s", "", first) in said
    methods = (
        [
            name
            for name, value in vars(thing).items()
            if inspect.isfunction(value) and not name.startswith("_")
        ]
        if inspect.isclass(thing)
        else []
    )
    for method in methods:
        assert (
            re.sub(
                r"\s",
                "",
                inspect.getdoc(getattr(thing, method)).partition("\n")[0].replace("`", ""),
            )
            in said
        ), method
    helps = dict(
        re.findall(
            r"^    (\w+): (.*?)(?:  \[.*\])?$", rest.partition("Arguments:")[2], re.MULTILINE
        )
    )
    for parameter in inspect.signature(thing).parameters:
        assert re.search(rf"[(,]{parameter}:", said), f"not in the signature: {parameter}"
        assert re.sub(r"\s", "", helps.get(parameter, "")) in said
    assert not re.search(r"Annotated|Option\(|Outcome", said)


QUESTIONS = {
    "what does a share of 17 % mean": "what-does-a-share-of-17",
    "I only have token ids": "i-only-have-token-ids",
    "model is bigger than memory": "my-model-is-bigger-than-memory",
}
"""What users type, and where the anchor of the answer begins."""


@pytest.mark.parametrize("query", QUESTIONS)
def test_the_search_has_a_heading_for_what_users_type(site, query):
    """Of all sections of the site the answer has the most of the words in its title."""
    words = set(re.findall(r"\w+", query.lower()))
    sections = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))["docs"]
    titles = {entry["location"]: entry["title"].lower() for entry in sections}
    shared = {place: len(words & set(re.findall(r"\w+", title))) for place, title in titles.items()}
    first = max(shared, key=shared.get)
    assert first.startswith(f"docs/questions.html#{QUESTIONS[query]}")


def test_nothing_is_loaded_from_elsewhere(site):
    wrong = []
    for page in sorted(site.rglob("*.html")):
        loaded = re.findall(
            r'(?:\bsrc=|<link[^>]*\bhref=)"([^"]*)"', page.read_text(encoding="utf-8")
        )
        wrong += [
            (page.name, name)
            for name in loaded
            if not (page.parent / name.partition("#")[0]).is_file() and page.name != "404.html"
        ]
    for sheet in site.rglob("*.css"):
        urls = re.findall(
            r"(?:url\(|@import\s)[\"']?([^)]{0,60})", sheet.read_text(encoding="utf-8")
        )
        wrong += [(sheet.name, url) for url in urls if not url.startswith("data:")]
    assert not wrong
