"""Files of figures: members of their folder, replaced only where they are ours."""

from __future__ import annotations

import pytest

from recallkit.display.figure_files import save_figures
from recallkit.errors import UserError
from recallkit.storage import artifacts
from tests.display.test_charts import MODELS, figure


def test_figures_are_members_of_their_folder_and_ours_are_replaced(tmp_path):
    written = save_figures([figure("one"), figure("two")], tmp_path)
    assert [path.name for path in written] == ["one.svg", "one.png", "one.pdf", "two.svg", "two.png", "two.pdf"]
    assert set(artifacts.members(tmp_path / "manifest.json")) == {path.name for path in written}
    assert [path.read_bytes()[:4] for path in written[:3]] == [b"<svg", b"\x89PNG", b"%PDF"]
    before = written[0].read_bytes()
    assert save_figures([figure("one"), figure("two")], tmp_path) == written
    assert written[0].read_bytes() == before, "the same every time"
    save_figures([figure("one", models=MODELS[::-1])], tmp_path)
    assert written[0].read_bytes() != before
    assert save_figures([], tmp_path / "none") == []
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("name", ["picture.svg", "picture.png"])
def test_other_people_s_pictures_stay_and_nothing_else_is_written(tmp_path, name):
    (tmp_path / name).write_bytes(b"mine")
    with pytest.raises(UserError, match="did not write"):
        save_figures([figure("first"), figure()], tmp_path)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [(name, b"mine")]
