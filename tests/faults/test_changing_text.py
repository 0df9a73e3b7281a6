"""Text that changes while it is read: one line that names the shard, nothing finished, and no trace
once it is what it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from recallkit import cli, slicing
from recallkit.options import TextOptions
from recallkit.text import encoding, readers, sequences
from recallkit.text.open_text import OpenText
from recallkit.text.records import EncodedDocuments, Position
from tests.conftest import made_up_texts, write_jsonl
from tests.faults.conftest import has_committed, left_over, visible


def replace(path: Path) -> None:
    """By another file, which whoever has opened the first one does not see."""
    write_jsonl(path.with_name("new"), made_up_texts(30, 100, seed=9)).replace(path)


def write_over(path: Path) -> None:
    """In place, by lines as long as those that stood there."""
    path.write_text(path.read_text().replace("token", "motor").replace("state", "stone"))


CHANGES = [Path.unlink, replace, write_over]
CHANGED, GONE = (
    "changed while it was read; keep other programs from writing to it",
    "cannot be read (No such file or directory); check that it is",
)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """Two shards of many commits each, read in blocks of a few lines."""
    folder = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "BLOCK_BYTES", 1 << 12)
        patch.setattr(encoding, "_BATCH_CHARACTERS", 4_000)
        patch.setattr(sequences, "SEQUENCES_PER_ROW_GROUP", 16)
        yield [
            write_jsonl(folder / f"{name}.jsonl", made_up_texts(40, 120, seed=number))
            for number, name in enumerate("ab")
        ]


@pytest.fixture(scope="module")
def expected(shards, tmp_path_factory) -> dict[str, bytes]:
    """What is made of a text that stays."""
    text, folder = (
        TextOptions([str(shards[0].parent)], "validation"),
        tmp_path_factory.mktemp("whole"),
    )
    slicing.slice_text(text, folder, counts=None, seq_len=64)
    return tables(folder)


@pytest.fixture
def command(shards, monkeypatch, capsys) -> Callable[..., tuple[int, list[str]]]:
    """Slices the text in this process, which does something once the reading is at `at`; gives its
    status and what it says."""

    def call(
        out: Path, *, at: Position | None = None, then: Callable[[], None] = lambda: None
    ) -> tuple[int, list[str]]:
        whole = OpenText.encoded

        def watched(self: OpenText, *arguments: object) -> Iterator[EncodedDocuments]:
            waits = at is not None
            for batch in whole(self, *arguments):
                yield batch
                if waits and batch.positions[-1] >= at:
                    waits = False
                    then()

        with monkeypatch.context() as patch, pytest.raises(SystemExit) as ended:
            patch.setattr(OpenText, "encoded", watched)
            cli.run(["slice", str(shards[0].parent), "-o", str(out), "--seq-len", "64"])
        said = capsys.readouterr().err.splitlines()
        return int(ended.value.code or 0), [line for line in said if "no --tokenizer" not in line]

    return call


def tables(folder: Path) -> dict[str, bytes]:
    """What decides no byte of a table, the seconds of its stages, stands in manifest.json."""
    return {
        name: content
        for name, content in visible(folder).items()
        if not name.endswith("manifest.json")
    }


@pytest.mark.parametrize("change", CHANGES)
def test_a_text_that_changes_is_told_and_leaves_no_trace(
    command, shards, expected, tmp_path, change
):
    """A shard half read, one not read yet, and of one way to change one that was read."""
    assert "tokens.parquet" in expected
    before = [shard.read_bytes() for shard in shards]
    moments = [
        (0, Position(0, 20)),
        (1, Position(0, 20)),
        *([(0, Position(1, 20))] if change is replace else []),
    ]
    for place, at in moments:
        out = tmp_path / f"{place}{at}"
        status, said = command(out, at=at, then=lambda shard=shards[place]: change(shard))
        changed = shards[place].read_bytes() if change is not Path.unlink else None
        shards[place].write_bytes(before[place])
        assert changed != before[place]
        assert status == 1, said
        assert len(said) == 1
        assert said[0].startswith(
            f"recallkit: {shards[place]}: {GONE if change is Path.unlink else CHANGED}"
        )
        assert not visible(out)
        assert not left_over(out)
        status, said = command(out)
        assert status == 0, said
        assert tables(out) == expected
        assert not list(out.rglob(".*"))


def test_work_on_a_shard_that_cannot_be_read_for_a_while_is_not_lost(
    command, shards, expected, tmp_path
):
    """A file server that is away: what was read before is right."""
    before = shards[1].read_bytes()
    status, said = command(tmp_path / "cut", at=Position(0, 30), then=shards[1].unlink)
    shards[1].write_bytes(before)
    assert status == 1, said
    assert has_committed(tmp_path / "cut")
    status, said = command(tmp_path / "cut")
    assert status == 0, said
    assert "resuming after" in said[0]
    assert tables(tmp_path / "cut") == expected


def test_a_bad_record_of_a_text_that_stays_is_told_as_one(command, shards, tmp_path):
    before = shards[1].read_bytes()
    shards[1].write_bytes(before + b"{\n")
    status, said = command(tmp_path / "cut")
    shards[1].write_bytes(before)
    assert (status, len(said)) == (1, 1)
    assert f"{shards[1]}, line 41: not JSON" in said[0]
    assert has_committed(tmp_path / "cut")
