"""Reads FASTA files of DNA, plain or compressed, in constant memory: a chromosome becomes documents
of about a million bases."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recallkit.errors import UserError
from recallkit.text.readers import FileShard

if TYPE_CHECKING:
    from collections.abc import Iterator

    from recallkit.text.readers import OnBad

_LONGEST_GAP = 1 << 28
"""Bases of a gap that no assembly has: a small compressed file can contain hours of them."""
STRETCH = 1 << 20
"""Bases of a document: chromosomes are longer than a record may be."""

_GAP = re.compile(rb"N{1000,}")
"""Bases that an assembly does not know.

They are left out: a model predicts them for nothing, and no text is in them to recall.
"""

_LONGEST_NAME = 1 << 16
"""What is read of the line of a name at most; lines of bases have any length."""
_SPACE = b" \t\r\n"
_LETTERS = bytes(range(ord("A"), ord("Z") + 1)) + b"*-"


@dataclass(eq=False)
class FastaShard(FileShard):
    """A file of sequences under lines `>NAME ...`.

    A record is a stretch of one, with an id as genome browsers write it: chr1:1-1048576.

    Bases are upper-cased: lower case marks repeats that a program found, and is not part of the
    sequence.
    """

    unit = "record"
    first_number = 1

    def records(self, first: int, on_bad: OnBad) -> Iterator[tuple[int, dict[str, Any]]]:
        """Stretches from number `first` on, without gaps; see `Shard.records`."""
        number = -1
        try:
            for number, (name, start, bases) in enumerate(self._without_gaps()):
                if number < first:
                    continue
                where = f"{name}:{start + 1}-{start + len(bases)}"
                if odd := bases.translate(None, _LETTERS):
                    on_bad(
                        number,
                        f"{chr(odd[0])!r} in {where} is not a base",
                        "check that the file is FASTA, or copy it again",
                    )
                else:
                    yield number, {"text": bases.decode("ascii"), "id": where}
        except OSError as error:
            raise self._damaged(error, number + 1) from error
        if number < 0:
            raise self._empty()

    def _stretches(self) -> Iterator[tuple[str, int, bytes]]:
        """Sequence, number of bases before, and bases of each stretch.

        Raises UserError where there is no name.
        """
        name, start, bases = None, 0, bytearray()
        begins_line = True
        for piece in self._pieces(_LONGEST_NAME):
            if begins_line and piece.startswith(b">"):
                if name is not None and bases:
                    yield name, start, bytes(bases)
                words = piece[1:].decode("utf-8", "replace").split(maxsplit=1)
                name, start, bases = words[0] if words else "unnamed", 0, bytearray()
                is_name = True
            elif begins_line or not is_name:
                is_name = False
                bases += piece.translate(None, _SPACE).upper()
            begins_line = piece.endswith(b"\n")
            if name is None and bases:
                raise UserError(
                    "does not begin with a line >NAME",
                    where=self.name,
                    remedy="give a FASTA file, or text as .txt",
                )
            while name is not None and len(bases) >= STRETCH:
                yield name, start, bytes(bases[:STRETCH])
                start += STRETCH
                del bases[:STRETCH]
        if name is not None and bases:
            yield name, start, bytes(bases)

    def _without_gaps(self) -> Iterator[tuple[str, int, bytes]]:
        """What is between the gaps of each stretch. Raises UserError for a gap without end."""
        num_unknown = 0
        for name, start, bases in self._stretches():
            begin = 0
            for gap in _GAP.finditer(bases):
                if begin < gap.start():
                    yield name, start + begin, bases[begin : gap.start()]
                begin = gap.end()
            if begin < len(bases):
                yield name, start + begin, bases[begin:]
            num_unknown = num_unknown + len(bases) if begin == len(bases) else 0
            if num_unknown > _LONGEST_GAP:
                problem = f"more than {_LONGEST_GAP:,} times N in a row"
                raise UserError(
                    problem,
                    where=self.name,
                    remedy="remove them, or copy the file again",
                )
