"""Names and versions of installed packages as the built-in results identify them."""

from importlib.metadata import PathDistribution, distributions

import pytest

from recallkit import builtin


def test_names_and_versions_are_those_that_a_parser_of_metadata_reads():
    every = [each for each in distributions() if each.metadata["Name"]]
    assert len(every) > 50
    assert [builtin._name_and_version(each) for each in every] == [(each.metadata["Name"], each.version) for each in every]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"Metadata-Version: 2.1\nname:  a-b \nSummary: of\n  Version: 3\nVersion: 1.0\n\nName: text\n", ("a-b ", "1.0")),
        (b"Summary: none\n\nName: text\nVersion: 1\n", ("", "")),
        (b"Name: a\nVersion: \xff\n", ("", "")),
        (None, ("", "")),
    ],
)
def test_only_headers_are_read_and_broken_metadata_are_none(tmp_path, content, expected):
    installed = tmp_path / "a.dist-info"
    installed.mkdir()
    if content is not None:
        (installed / "METADATA").write_bytes(content)
    assert builtin._name_and_version(PathDistribution(installed)) == expected


def test_the_cache_folder_is_another_with_another_set_of_packages(monkeypatch, tmp_path):
    before = builtin.folder()
    assert before == builtin.folder()
    installed = tmp_path / "never_published-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: never-published\nVersion: 1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert builtin.folder() != before
