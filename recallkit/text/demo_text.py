"""The built-in text, so that the whole pipeline runs without a download: CPython's own modules and
language reference.

`demo:validation` is shipped: a passage of each of 60 documents of CPython 3.11.7
(`examples/zoo_text.py` makes it), the same on every machine. `demo:train` is what the running
Python has of other names. A hash of names decides, so that no model of the zoo was trained on a
shipped document, and no version of Python trains on one.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
import tokenize
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.storage import hashing
from recallkit.text.fields import FieldFinder
from recallkit.text.readers import JsonLinesShard, Shard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recallkit.text.readers import OnBad

SPLITS = ("train", "validation")

SHIPPED = Path(str(files("recallkit"))) / "data" / "demo" / "validation.jsonl.zst"
"""The validation text; its licence is beside it."""

# Packages differ a thousandfold in size, so a tenth of the names is not a tenth of the bytes. This
# salt was chosen among the first few hundred for a share of bytes near a tenth in each source
# (CPython 3.10 to 3.13; in 3.14 18 % of pydoc).
_SALT = "132"

_NO_TEXT = {"test", "tests", "idle_test", "__pycache__"}
# Its one big module repeats the topics that are documents of their own, some of which are
# validation text.
_TOPICS_PACKAGE = "pydoc_data"


def is_validation(name: str) -> bool:
    """Whether text of this name (a top-level module, a topic, a project in canonical form) is
    validation text."""
    return hashlib.blake2b(f"{_SALT}:{name}".encode(), digest_size=8).digest()[0] % 10 == 0


@dataclass(frozen=True, slots=True)
class LibraryText:
    """A document of CPython: `split_name` decides its split; `content` is the text itself, or the
    path of the module that contains it."""

    id: str
    source: str
    split_name: str
    content: str | Path

    def text(self) -> str:
        """The text; "" for a module that cannot be decoded (the standard library has had such test
        data)."""
        if isinstance(self.content, str):
            return self.content
        try:
            with tokenize.open(self.content) as file:
                return file.read()
        except (SyntaxError, UnicodeDecodeError):
            return ""


def library_texts(split: str) -> list[LibraryText]:
    """The running Python's documents of a split, in the order of a hash, so that the first ones are
    a sample of all."""
    everything = [*_modules(Path(sysconfig.get_path("stdlib"))), *_topics()]
    return sorted(
        (text for text in everything if is_validation(text.split_name) == (split == "validation")),
        key=_place,
    )


def _place(text: LibraryText) -> bytes:
    return hashlib.blake2b(f"{text.source}:{text.id}".encode(), digest_size=8).digest()


def _modules(root: Path) -> Iterator[LibraryText]:
    """Modules of the standard library.

    Its top-level package decides the split: siblings can be near-duplicates.

    Only folders that are packages by name are entered, which leaves out site-packages, lib-dynload
    and the like.
    """
    paths: dict[str, Path] = {}
    for folder, subfolders, names in os.walk(root):
        packages = filter(str.isidentifier, subfolders)
        subfolders[:] = [name for name in packages if name not in _NO_TEXT]
        for name in names:
            parts = [*Path(folder).relative_to(root).parts, name.removesuffix(".py")]
            if name.endswith(".py") and parts[-1].isidentifier() and parts[0] != _TOPICS_PACKAGE:
                paths[".".join(parts).removesuffix(".__init__")] = Path(folder, name)
    for module, path in sorted(paths.items()):
        yield LibraryText(module, "stdlib", module.split(".")[0], path)


def _topics() -> Iterator[LibraryText]:
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield LibraryText(topic, "pydoc", topic, text)


class LibraryShard(Shard):
    """The training text of the running Python as a shard; records are its documents, counted from
    0."""

    unit = "document"

    def digest(self) -> str:
        """The digest of names and contents, which differ between versions of Python."""
        texts = [(text.id.encode(), text.text().encode()) for text in library_texts("train")]
        return hashing.digest_json([hashing.digest_bytes(*pair) for pair in texts])

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Documents from `first` on, each with its number; blank ones are left out, and so are
        their numbers."""
        for number, document in enumerate(library_texts("train")[first:], first):
            text = document.text()
            if text.strip():
                yield number, {"text": text, "source": document.source, "id": document.id}


def demo_shard(split: str) -> Shard:
    """The built-in text of one split. Raises UserError for a split other than SPLITS."""
    if split not in SPLITS:
        raise UserError(
            f"no such split: {split}",
            where="demo",
            remedy=f"choose {', '.join(f'demo:{known}' for known in SPLITS)}",
        )
    name = f"demo:{split}"
    if split == "train":
        return LibraryShard(name, "demo", FieldFinder())
    return JsonLinesShard(name, "demo", FieldFinder(), SHIPPED)
