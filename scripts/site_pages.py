"""The documentation site's pages and signatures: a hook of mkdocs, and an extension of griffe,
which reads docstrings (docs/mkdocs.yml).

The site has the documents under their paths in the repository, so that a link between them is the
same there and here.
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from griffe import (
    Docstring,
    Expr,
    ExprSubscript,
    Extension,
    Function,
    GriffeLoader,
    Module,
    Parameter,
    ParameterKind,
    Parameters,
)
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Callable

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import recallkit  # noqa: E402

HOME = "https://github.com/recallkit/recallkit"
RAW = HOME.replace("github.com", "raw.githubusercontent.com")
DOCUMENTS = ("*.md", "docs/*.md", "docs/**/*.svg", "docs/**/*.png")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the documents and their pictures to what is in docs_dir."""
    for path in sorted({path for pattern in DOCUMENTS for path in ROOT.glob(pattern)}):
        files.append(
            File.generated(config, path.relative_to(ROOT).as_posix(), abs_src_path=str(path))
        )
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Makes README's whole addresses of documents and pictures those of the site's pages."""
    return (
        re.sub(rf"{HOME}/blob/main/|{RAW}/main/", "", markdown)
        if page.file.src_uri == "README.md"
        else markdown
    )


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Shows a `|` of code in a table, written `\\|`, as GitHub does, and keeps printed tables out
    of what a search finds."""
    html = re.sub(r"<td.*?</td>", lambda cell: cell[0].replace("\\|", "|"), html, flags=re.DOTALL)
    printed = r'(?<=<div class="highlight")(?=><pre>(?:(?!</pre>).)*───)'
    return re.sub(printed, " data-search-exclude", html, flags=re.DOTALL)


class PublicNames(Extension):
    """Shows the package's functions as Python has them: without the declarations of options, their
    help as that of the arguments.

    Functions are imported for it (no heavy package is before one is called); classes, which need
    polars, are read.
    """

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **kwargs: object) -> None:
        """Called with everything that was read."""
        for name in set(recallkit.__all__) & set(pkg.members):
            found = pkg[name]
            target = found.final_target if found.is_alias else found
            if target.is_function:
                _as_called(target, getattr(recallkit, name))
            elif target.is_class and target.docstring:
                target.docstring.value = linked(
                    fields_as_list(target.docstring.value, set(target.members))
                )


def _as_called(function: Function, real: Callable[..., object]) -> None:
    parameters = inspect.signature(real).parameters
    shown = {
        f"  [default: {each.default}]" for each in parameters.values()
    }  # beside the help's, in words, for None
    lines = [
        line[: line.rindex("  [")] if line.endswith(tuple(shown)) else line
        for line in inspect.getdoc(real).splitlines()
    ]
    function.docstring = Docstring(linked("\n".join(lines)), parent=function, parser="google")
    function.parameters = Parameters(*map(_parameter, parameters.values()))
    function.returns = _undeclared(function.returns)


def _parameter(each: inspect.Parameter) -> Parameter:
    """A parameter as the site shows it: options are inherited by the class of a command's, so that
    only Python knows them all."""
    kind = each.annotation
    shown = (
        None
        if kind is each.empty
        else inspect.formatannotation(kind)
        if not isinstance(kind, str)
        else kind
    )
    named = (
        ParameterKind.keyword_only
        if each.kind is each.KEYWORD_ONLY
        else ParameterKind.positional_or_keyword
    )
    return Parameter(
        each.name,
        annotation=shown,
        kind=named,
        default=None if each.default is each.empty else repr(each.default),
    )


def _undeclared(annotation: str | Expr | None) -> str | Expr | None:
    """The type in `Outcome[type]`."""
    return (
        annotation.slice
        if isinstance(annotation, ExprSubscript) and annotation.canonical_name == "Outcome"
        else annotation
    )


def linked(text: str) -> str:
    """A docstring in which a document's name is a link."""
    return re.sub(r"\bdocs/([\w-]+\.md)", r"[\1](\1)", text)


def fields_as_list(text: str, fields: set[str]) -> str:
    """A docstring whose lines begin `field: `, or `field, field: `, with them as a list."""

    def item(match: re.Match[str]) -> str:
        return (
            f"\n- **{match[1]}**{match[2]}"
            if match[1].split(",")[0].strip("`") in fields
            else match[0]
        )

    return re.sub(r"^(`?\w+`?(?:, `?\w+`?)*)((?:, [^:\n]*)?: )", item, text, flags=re.MULTILINE)
