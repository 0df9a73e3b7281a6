"""Links in the place of outputs, of temporary files and of unfinished work: nothing outside is
written, read for ours, or removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from recallkit.errors import UserError
from recallkit.storage import artifacts
from recallkit.storage.journal import Journal, PartsJournal


@pytest.fixture
def victim(tmp_path) -> Path:
    """Someone else's file, which every test leaves as it was."""
    path = tmp_path / "elsewhere" / "victim"
    path.parent.mkdir()
    path.write_text("theirs")
    return path


def unharmed(victim: Path) -> bool:
    return victim.read_text() == "theirs" and [p.name for p in victim.parent.iterdir()] == [
        "victim"
    ]


def test_an_output_that_is_a_link_is_replaced_and_not_followed(tmp_path, victim):
    (tmp_path / "out.json").symlink_to(victim)
    artifacts.write_json(tmp_path / "out.json", {"a": 1})
    assert not (tmp_path / "out.json").is_symlink()
    assert unharmed(victim)


@pytest.mark.parametrize("target", ["elsewhere/new", "out.json"])
def test_links_to_nothing_and_to_themselves(tmp_path, victim, target):
    (tmp_path / "out.json").symlink_to(tmp_path / target)
    artifacts.write_json(tmp_path / "out.json", {"a": 1})
    assert artifacts.read_json(tmp_path / "out.json") == {"a": 1}
    assert unharmed(victim)


def test_a_link_to_a_folder_or_to_a_foreign_file_is_no_table_of_ours(tmp_path, victim):
    for name, target in (("folder", victim.parent), ("file", victim)):
        (tmp_path / name).symlink_to(target)
        with pytest.raises(UserError, match=r"a directory|did not write"):
            artifacts.check_replaceable(tmp_path / name)
    assert unharmed(victim)


def test_a_new_file_behind_a_link_is_not_written(tmp_path, victim):
    """A link of the name of the folder in which it is written, and one of the name of the file in
    it."""
    folder = tmp_path / ".out.json.new.partial"
    folder.symlink_to(victim.parent)
    with pytest.raises(UserError, match="a link"):
        artifacts.write_json(tmp_path / "out.json", {"a": 1})
    folder.unlink()
    artifacts.write_json(tmp_path / "out.json", {"a": 1})
    assert artifacts.read_json(tmp_path / "out.json") == {"a": 1}
    assert unharmed(victim)


@pytest.mark.parametrize("kind", [Journal, PartsJournal])
@pytest.mark.parametrize("target", ["elsewhere", "nowhere"])
def test_unfinished_work_is_not_kept_behind_a_link(tmp_path, victim, kind, target):
    (tmp_path / ".out.partial").symlink_to(tmp_path / target)
    with (
        pytest.raises(UserError, match="a link, where unfinished work is kept"),
        kind(tmp_path / "out", {"a": 1}),
    ):
        pass
    assert unharmed(victim)
    assert not (tmp_path / "nowhere").exists()
