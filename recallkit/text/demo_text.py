"""The built-in text: text that every Python installation contains, so that the whole pipeline runs without a download.

Standard-library modules, the language reference in `pydoc_data`, and the READMEs of installed packages. A tenth,
fixed by a hash of names, is validation text: no model of the zoo was trained on it. The sample is a passage of each
document of that tenth, all of about one length, so that a tenth of the text has all of its documents.
"""

from __future__ import annotations

import hashlib
import os
import re
import sysconfig
import tokenize
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from recallkit import config
from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.text.fields import FieldFinder
from recallkit.text.readers import Shard

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.metadata import Distribution

    from recallkit.text.readers import OnBad

SPLITS = ("train", "validation", "sample")

SAMPLE_CHARACTERS = 300_000
"""About how long all passages of the sample are together: 100,000 tokens of the built-in tokenizer."""

# Packages differ a thousandfold in size, so a tenth of the names is not a tenth of the bytes. This salt was chosen
# among the first few hundred for a share of bytes near a tenth in each of the three sources (CPython 3.10 to 3.13).
_SALT = "132"

_TESTS = {"test", "tests", "idle_test"}
# Its one big module repeats the topics that are documents of their own, some of which are validation text.
_TOPICS_PACKAGE = "pydoc_data"
_NOT_OURS_TO_READ = {config.DISTRIBUTION}


def is_validation(name: str) -> bool:
    """Whether text of this name (a top-level module, a topic, a project in canonical form) is validation text."""
    return hashlib.blake2b(f"{_SALT}:{name}".encode(), digest_size=8).digest()[0] % 10 == 0


@dataclass(frozen=True, slots=True)
class DemoText:
    """One document: `split_name` decides its split; `content` is the text itself, or the path of the module that contains it."""

    id: str
    source: str
    split_name: str
    content: str | Path

    def text(self) -> str:
        """The text; "" for a module that cannot be decoded (the standard library has had such test data)."""
        if isinstance(self.content, str):
            return self.content
        try:
            with tokenize.open(self.content) as file:
                return file.read()
        except (SyntaxError, UnicodeDecodeError):
            return ""


def demo_texts(split: str) -> list[DemoText]:
    """The documents of a split, in the order of a hash, so that the first ones are a sample of all. Modules are not read yet.

    Those of `sample` are the passages. Raises UserError for a split other than SPLITS.
    """
    _check_split(split)
    if split == "sample":
        return _passages(demo_texts("validation"), SAMPLE_CHARACTERS)
    everything = [*_modules(Path(sysconfig.get_path("stdlib"))), *_topics(), *_readmes()]
    return sorted((text for text in everything if is_validation(text.split_name) == (split == "validation")), key=_place)


def _place(text: DemoText) -> bytes:
    return hashlib.blake2b(f"{text.source}:{text.id}".encode(), digest_size=8).digest()


def _passages(documents: Sequence[DemoText], characters: int) -> list[DemoText]:
    """A passage of each document, of one length but for their last lines; shorter documents whole; `characters` together."""
    texts = [document.text() for document in documents]
    length = _passage_length([len(text) for text in texts], characters)
    return [replace(document, content=_passage(document, text, length)) for document, text in zip(documents, texts, strict=True)]


def _passage_length(sizes: Sequence[int], characters: int) -> int:
    """The length at which documents of these sizes, the longer ones cut to it, have so many characters together."""
    left = characters
    for number, size in enumerate(sorted(sizes)):
        equal = left // (len(sizes) - number)
        if size > equal:
            return equal
        left -= size
    return max(sizes, default=0)


def _passage(document: DemoText, text: str, length: int) -> str:
    """Whole lines of a text, at least `length` characters if it has so many, at a place that a hash of its name decides."""
    if len(text) <= length:
        return text
    name = f"passage:{document.source}:{document.id}"
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % (len(text) - length + 1)
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", start + length - 1) + 1
    return text[start : end or len(text)]


def _check_split(split: str) -> None:
    if split not in SPLITS:
        raise UserError(f"no such split: {split}", where="demo", remedy=f"choose {', '.join(f'demo:{known}' for known in SPLITS)}")


def _modules(root: Path) -> Iterator[DemoText]:
    """Modules of the standard library. Its top-level package decides the split: siblings can be near-duplicates.

    Only folders that are packages by name are entered, which leaves out site-packages, lib-dynload and the like.
    """
    found: dict[str, Path] = {}
    for folder, subfolders, files in os.walk(root):
        subfolders[:] = [name for name in subfolders if name.isidentifier() and name not in {*_TESTS, "__pycache__"}]
        for name in files:
            parts = [*Path(folder).relative_to(root).parts, name.removesuffix(".py")]
            if name.endswith(".py") and parts[-1].isidentifier() and parts[0] != _TOPICS_PACKAGE:
                found[".".join(parts).removesuffix(".__init__")] = Path(folder, name)
    for module, path in sorted(found.items()):
        yield DemoText(module, "stdlib", module.split(".")[0], path)


def _topics() -> Iterator[DemoText]:
    from pydoc_data.topics import topics

    for topic, text in sorted(topics.items()):
        yield DemoText(topic, "pydoc", topic, text)


def _readmes() -> Iterator[DemoText]:
    """The description of each installed project that has one."""
    for project in installed_projects():
        if project.description:
            yield DemoText(project.name, "readme", project.name, project.description)


@dataclass(frozen=True, slots=True)
class InstalledProject:
    """The metadata of an installed project; `headers` are (name, value), the description not among them."""

    name: str
    version: str
    description: str
    headers: tuple[tuple[str, str], ...]


def installed_projects() -> list[InstalledProject]:
    """Installed projects by canonical name, each once even if several copies are on the path; broken ones are left out.

    Among copies, one with a description takes precedence, then the one whose version string sorts last.
    """
    from importlib.metadata import distributions

    found: dict[str, InstalledProject] = {}
    for project in filter(None, map(_described, distributions())):
        if project.name not in _NOT_OURS_TO_READ:
            found[project.name] = max(found.get(project.name, project), project, key=_preference)
    return [project for _, project in sorted(found.items())]


def _preference(project: InstalledProject) -> tuple[bool, str, str]:
    return bool(project.description), project.version, project.description


def _described(distribution: Distribution) -> InstalledProject | None:
    """The parsed metadata, with the name in canonical form; None if they are broken or have no name."""
    try:
        fields: Any = distribution.metadata
    except (OSError, ValueError):
        return None
    name = re.sub(r"[-_.]+", "-", fields.get("Name") or "").lower()
    text = (fields.get("Description") or "").strip()
    headers = tuple((header, str(value)) for header, value in fields.items() if header.lower() != "description")
    return InstalledProject(name, str(fields.get("Version")), "" if text == "UNKNOWN" else text, headers) if name else None


class DemoShard(Shard):
    """The demo text of one split as a shard; records are its documents, counted from 0.

    Raises UserError for a split other than SPLITS.
    """

    def __init__(self, split: str) -> None:
        _check_split(split)
        super().__init__(f"demo:{split}", "demo", FieldFinder())
        self.split = split

    def digest(self) -> str:
        """The digest of names and contents, which differ between installations."""
        digests = (artifacts.digest_bytes(text.id.encode(), text.text().encode()) for text in demo_texts(self.split))
        return artifacts.digest_json(list(digests))

    def place(self, record: int) -> str:
        """Preset and document, from 0."""
        return f"{self.name}, document {record}"

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Documents from `first` on, each with its number; blank ones are left out, and so are their numbers."""
        for number, demo_text in enumerate(demo_texts(self.split)[first:], first):
            text = demo_text.text()
            if text.strip():
                yield number, {"text": text, "source": demo_text.source, "id": demo_text.id}
