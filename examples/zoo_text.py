"""Makes the validation text that is shipped: passages of CPython's own modules and language
reference.

    python examples/zoo_text.py --to recallkit/data/demo

Run it by CPython 3.11.7 as python.org releases it, from which the shipped text is (distributions of
Linux patch theirs). It writes `validation.jsonl.zst`, a passage of each validation document, all of
about one length, so that a tenth of the text has all of its documents; and `LICENSE.txt`, the
licence of CPython with what was done to its sources.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import platform
import sysconfig
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from recallkit.text.demo_text import SHIPPED, LibraryText, library_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSION = "3.11.7"
CHARACTERS = 325_000
"""About how long all passages are together: 100,000 tokens of the built-in tokenizer."""
LEFT_OUT = {"asyncio.constants", "asyncio.events", "asyncio.sslproto"}
"""Modules with code of another project (uvloop), which has a licence of its own."""
NOTICE = f"""\
validation.jsonl.zst has passages of modules of CPython {VERSION}'s standard library and of its language reference (pydoc's topics).
Changes: of each document one passage of whole lines was chosen, and the passages are in one file. Nothing in them was edited.
CPython's licence follows.

"""


def passages(documents: Sequence[LibraryText], characters: int) -> list[dict[str, str]]:
    """A passage of each document that is not blank, of one length but for their last lines; shorter
    ones whole; `characters` together."""
    texts = {
        document: text
        for document in documents
        if document.id not in LEFT_OUT and (text := document.text()).strip()
    }
    length = passage_length([len(text) for text in texts.values()], characters)
    return [
        {"text": passage(each, text, length), "source": each.source, "id": each.id}
        for each, text in texts.items()
    ]


def passage_length(sizes: Sequence[int], characters: int) -> int:
    """The length at which documents of these sizes, the longer ones cut to it, have so many
    characters together."""
    left = characters
    for number, size in enumerate(sorted(sizes)):
        equal = left // (len(sizes) - number)
        if size > equal:
            return equal
        left -= size
    return max(sizes, default=0)


def passage(document: LibraryText, text: str, length: int) -> str:
    """Whole lines of a text, at least `length` characters if it has so many, at a place that a hash
    of its name decides."""
    if len(text) <= length:
        return text
    name = f"passage:{document.source}:{document.id}"
    place = int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest()) % (
        len(text) - length + 1
    )
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", start + length - 1) + 1
    return text[start : end or len(text)]


def main() -> None:
    """Parses the command line and writes both files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--to", type=Path, required=True, help="the folder of both files")
    folder = parser.parse_args().to
    if platform.python_version() != VERSION:
        raise SystemExit(f"this is Python {platform.python_version()}: run it by {VERSION}")
    made = passages(library_texts("validation"), CHARACTERS)
    lines = "".join(f"{json.dumps(each, ensure_ascii=False)}\n" for each in made).encode()
    (folder / SHIPPED.name).write_bytes(
        pa.Codec("zstd", compression_level=19).compress(lines, asbytes=True)
    )
    licence = Path(sysconfig.get_path("stdlib"), "LICENSE.txt").read_text(encoding="utf-8")
    (folder / "LICENSE.txt").write_text(NOTICE + licence, encoding="utf-8")
    print(f"{len(made)} documents, {sum(len(each['text']) for each in made):,} characters")


if __name__ == "__main__":
    main()
