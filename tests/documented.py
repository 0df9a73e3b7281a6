"""What documents tell a reader to type: their code blocks, as lines of a shell, as Python, or as
what is printed."""

from __future__ import annotations

import ast
import re
import shlex
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt

from tests.conftest import ROOT

PROGRAMS = re.compile(
    r"(?:[A-Z_]+=\S+ )*(?:nice )?(?P<program>recallkit|python|pip|make|git|bash|ln|uv|uvx|pipx|\w+=\$\(sbatch|sbatch|scripts/\S+)(?: |$)"
)


@dataclass(frozen=True)
class Block:
    """A code block. `kind`: shell, python or printed."""

    document: str
    line: int
    text: str
    kind: str

    @property
    def commands(self) -> list[str]:
        """The lines of a shell block as one types them: continued ones whole, `$ ` and comments
        gone."""
        whole = self.text.replace("\\\n", " ").splitlines()
        lines = [re.sub(r"\s#\s.*", "", line).strip().removeprefix("$ ") for line in whole]
        return [line for line in lines if line and not line.startswith("#")]


def documents() -> list[Path]:
    return [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(path: Path) -> list[Block]:
    """The code blocks of a document, indented and fenced."""
    found = []
    for token in MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text(encoding="utf-8")):
        if token.type in ("fence", "code_block"):
            block = Block(path.relative_to(ROOT).as_posix(), token.map[0] + 1, token.content, "")
            found.append(
                Block(block.document, block.line, block.text, kind(block, token.info.strip()))
            )
    return found


def kind(block: Block, language: str) -> str:
    if language == "python" or (not language and is_python(block.text)):
        return "python"
    is_shell = [PROGRAMS.match(line) is not None for line in block.commands]
    return "shell" if language != "text" and is_shell and all(is_shell) else "printed"


def is_python(text: str) -> bool:
    """Whether it is a program that has something to do with recallkit."""
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return re.search(r"^(?:import|from) |\brecallkit\.\w+\(", text, re.MULTILINE) is not None


def words(command: str) -> list[str]:
    """The words of a line after `recallkit`, without a redirection of stderr; [] of another
    program's line."""
    return shlex.split(command.partition(" 2> ")[0])[1:] if command.startswith("recallkit ") else []


def inline(path: Path) -> list[str]:
    """Code in the running text and in tables."""
    tokens = MarkdownIt("gfm-like", {"linkify": False}).parse(path.read_text(encoding="utf-8"))
    return [
        child.content
        for token in tokens
        for child in token.children or ()
        if child.type == "code_inline"
    ]
