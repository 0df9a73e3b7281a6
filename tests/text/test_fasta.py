"""FASTA: what is read is what a line-by-line reader finds, however blocks fall; gaps, bad input,
re-entry; the commands on DNA."""

from __future__ import annotations

import gzip
import random
import re
import tempfile
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recallkit.text import fasta, readers
from recallkit.text.corpus import open_corpus
from tests.text.test_corpus import assert_reenters, fails

NAMES = st.text(alphabet="ab>; x|1", max_size=8)
LINES = st.lists(st.text(alphabet="ACGTacgtNn", max_size=9), max_size=6)


def write(folder: Path, text: str, name: str = "hg.fa") -> Path:
    path = folder / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return path


def documents(path: Path) -> list[tuple[str, str]]:
    return [(document.id, document.text) for document in open_corpus([str(path)]).documents()]


def by_line(text: str, stretch: int) -> list[tuple[str, str]]:
    """The same, line by line."""
    records: list[tuple[str, str]] = []
    for line in text.split("\n"):
        if line.startswith(">"):
            words = line[1:].split()
            records.append((words[0] if words else "unnamed", ""))
        else:
            records[-1] = (records[-1][0], records[-1][1] + line.strip().upper())
    cut = [
        (name, at, bases[at : at + stretch])
        for name, bases in records
        for at in range(0, len(bases), stretch)
    ]
    return [(f"{name}:{at + 1}-{at + len(part)}", part) for name, at, part in cut]


@settings(max_examples=80)
@given(
    st.lists(st.tuples(NAMES, LINES), min_size=1, max_size=4),
    st.integers(1, 7),
    st.integers(1, 30),
    st.sampled_from(["\n", "\r\n"]),
)
def test_it_reads_what_a_reader_of_lines_reads(sequences, block, stretch, end) -> None:
    text = ""
    for name, lines in sequences:
        text += f">{name}\n" + "".join(line + end for line in lines)
    text = text.removesuffix("\n")
    wanted = by_line(text, stretch)
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(readers, "BLOCK_BYTES", block),
        mock.patch.object(fasta, "STRETCH", stretch),
    ):
        path = write(Path(folder), text)
        if not wanted:
            assert "contains no record" in fails(path)[1]
            return
        assert documents(path) == wanted
        assert_reenters(path)


@pytest.mark.parametrize("name", ["hg.fa", "hg.FASTA", "hg.fna", "hg.fa.gz"])
def test_names_of_files(tmp_path, name):
    path = write(tmp_path, ">chr1 assembled\nACGT\nacgt\n>chr2\nNNAC\n", name)
    assert documents(path) == [("chr1:1-8", "ACGTACGT"), ("chr2:1-4", "NNAC")]
    (tmp_path / "README.txt").write_text("The assembly.")
    assert documents(tmp_path) == documents(path)
    assert {document.source for document in open_corpus([str(path)]).documents()} == {"hg"}


def test_a_chromosome_is_cut_and_its_gaps_are_left_out(tmp_path):
    rng = random.Random(0)
    bases = ["".join(rng.choices("ACGT", k=size)) for size in (fasta.STRETCH - 500, 2000, 700)]
    sequence = "N" * 10_000 + bases[0] + "N" * 1000 + bases[1] + "N" * 999 + bases[2] + "n" * 5000
    lines = "\n".join(sequence[at : at + 50] for at in range(0, len(sequence), 50))
    records = documents(write(tmp_path, f">chr1\n{lines}\n"))
    for name, text in records:
        start, end = map(int, re.fullmatch(r"chr1:(\d+)-(\d+)", name).groups())
        assert text == sequence[start - 1 : end].upper()
        assert len(text) <= fasta.STRETCH
    assert "".join(text for _, text in records) == bases[0] + bases[1] + "N" * 999 + bases[2]
    assert records[0][0] == f"chr1:10001-{fasta.STRETCH}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ACGT\n>chr1\nAC\n", "does not begin with a line >NAME"),
        (">chr1\nAC GT\n>chr2\nAC1T\n", "hg.fa, record 2: '1' in chr2:1-4 is not a base"),
        (">chr1\nAC\xffT\n", "is not a base"),
        (">chr1\n>chr2\n", "contains no record"),
        ("\n\n", "contains no record"),
    ],
)
def test_what_is_no_dna_is_named(tmp_path, text, message):
    assert message in fails(write(tmp_path, text))[1]


@pytest.mark.parametrize("block", range(1, 8))
def test_a_name_begins_a_line(tmp_path, block):
    with mock.patch.object(readers, "BLOCK_BYTES", block):
        assert "'>' in a:1-5 is not a base" in fails(write(tmp_path, ">a >b\nAC>GT\n"))[1]
