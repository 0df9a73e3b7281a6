"""`recallkit doctor --sizes`: what each required package adds on disk."""

from __future__ import annotations

import sys

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from recallkit import config
from recallkit.doctor import installation
from recallkit.errors import UserError
from tests.test_packaging import PROJECT

NEEDS = {
    config.DISTRIBUTION: ["first", "second[more]; python_version > '3'", "absent"],
    "first": ["Third.Part"],
    "second": ["third_part>=1", 'other; extra == "more"', 'never; extra == "less"'],
}
SIZES = {config.DISTRIBUTION: 1, "first": 10, "second": 200, "third-part": 3000, "other": 40_000, "never": 500_000}


@pytest.fixture
def made_up(tmp_path, monkeypatch):
    """An installation of six packages, two of which need a third; what is compiled or gone does not count."""
    for name, size in SIZES.items():
        folder = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        folder.mkdir()
        lines = "".join(f"Requires-Dist: {line}\n" for line in NEEDS.get(name, []))
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{lines}", encoding="utf-8")
        (folder / "RECORD").write_text(f"{name}.py,,\n{name}.pyc,,\nnot-there.py,,\n", encoding="utf-8")
        (tmp_path / f"{name}.py").write_text("#" * size, encoding="utf-8")
        (tmp_path / f"{name}.pyc").write_text("compiled", encoding="utf-8")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])


@pytest.mark.usefixtures("made_up")
def test_what_two_packages_need_counts_once_with_the_one_that_is_required_first(capsys):
    assert [(part.name, part.packages, part.size) for part in installation.installed_parts()] == [
        ("second", ("other", "second"), 40_200),
        ("first", ("first", "third-part"), 3010),
    ]
    assert installation.sizes_json(installation.installed_parts())["bytes"] == 43_210
    installation.print_sizes(installation.installed_parts())
    assert "0 MB in 4 packages" in " ".join(capsys.readouterr().out.split())


def test_every_required_package_has_its_purpose():
    assert set(installation.PURPOSES) == {canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]}


def test_it_needs_an_installation(monkeypatch):
    monkeypatch.setattr(installation, "DISTRIBUTION", "no-such-distribution")
    with pytest.raises(UserError, match="not installed here"):
        installation.installed_parts()
