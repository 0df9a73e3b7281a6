"""What a repository's host and citers read: it parses, agrees, and runs what contributors run."""

from __future__ import annotations

import re
import tomllib
from typing import Any

import pytest
import yaml

import recallkit
from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HOME = PROJECT["urls"]["Homepage"]


def parsed(path: str) -> Any:
    """A YAML file of the repository."""
    return yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))


def test_the_workflow_runs_what_contributors_run():
    steps = parsed(".github/workflows/ci.yml")["jobs"]["tests"]["steps"]
    assert "bash .ci/run" in [step.get("run") for step in steps]
    assert (ROOT / ".ci/run").is_file()


def test_commits_are_checked_by_the_targets_of_the_makefile():
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    (repository,) = parsed(".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "no other versions of ruff and mypy than the project's"
    entries = [hook["entry"] for hook in repository["hooks"]]
    assert entries == ["make lint", "make types"]
    assert {entry.removeprefix("make ") for entry in entries} <= set(targets)


def test_the_citation_is_of_this_version_and_of_both_papers():
    citation = parsed("CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"] == "recallkit"
    assert str(citation["version"]) == recallkit.__version__ == PROJECT["version"]
    assert [author["name"] for author in citation["authors"]] == [
        author["name"] for author in PROJECT["authors"]
    ]
    assert citation["repository-code"] == HOME
    papers = {paper["url"].rpartition("/")[2] for paper in citation["references"]}
    assert papers == {"2312.04927", "2402.18668"}
    for paper in citation["references"]:
        assert paper.keys() >= {"type", "title", "authors"}


@pytest.mark.parametrize("name", ["bug", "question"])
def test_an_issue_form_has_what_its_host_requires(name):
    form = parsed(f".github/ISSUE_TEMPLATE/{name}.yml")
    assert form["name"]
    assert form["description"]
    assert all(field["attributes"]["label"] for field in form["body"])
    names = [field["id"] for field in form["body"]]
    assert len(set(names)) == len(names)
    assert any(field["validations"]["required"] for field in form["body"] if "validations" in field)


def test_every_address_is_of_the_same_home():
    """A project that moves changes `Homepage`: the test names what else has the former address."""
    addresses = [*PROJECT["urls"].values()]
    addresses += [
        link["url"] for link in parsed(".github/ISSUE_TEMPLATE/config.yml")["contact_links"]
    ]
    policy = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    addresses += re.findall(r"https://[^)\s]+", policy)
    assert len(addresses) > 5
    assert [address for address in addresses if not address.startswith(HOME)] == []
