"""Constraints for pip at the lower bounds of pyproject.toml: every dependency, including extras, at
its lowest version.

scripts/check_versions.sh installs with them, so that a bound that no longer works is found before a
user finds it. The list is computed from pyproject.toml, the only place with bounds.

    python scripts/lowest_versions.py pyproject.toml > lowest.txt
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

_REQUIREMENT = re.compile(r"(?P<name>[A-Za-z0-9._-]+)(\[[^]]*\])?\s*(?P<versions>[^;]*)")


def lowest(requirement: str) -> str:
    """The constraint `name==bound` of a requirement like `name[extra]>=bound; marker`. Raises
    ValueError where it has no lower bound."""
    found = _REQUIREMENT.match(requirement)
    bounds = re.findall(r">=\s*([0-9][0-9a-z.]*)", found["versions"]) if found else []
    if not found or len(bounds) != 1:
        raise ValueError(f"{requirement}: exactly one lower bound (>=) is required")
    return f"{found['name']}=={bounds[0]}"


def constraints(project: dict[str, Any]) -> list[str]:
    """The constraints of the `project` table of a parsed pyproject.toml, sorted. Raises ValueError
    where one name has two bounds."""
    requirements = [
        *project["dependencies"],
        *(r for extra in project.get("optional-dependencies", {}).values() for r in extra),
    ]
    found = {lowest(requirement) for requirement in requirements}
    names = [line.split("==")[0] for line in found]
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise ValueError(f"{', '.join(sorted(twice))}: two lower bounds")
    return sorted(found)


def main() -> None:
    """Prints the constraints of the pyproject.toml on the command line; names a missing bound and
    exits with status 1."""
    (path,) = sys.argv[1:]
    try:
        print(
            "\n".join(constraints(tomllib.loads(Path(path).read_text(encoding="utf-8"))["project"]))
        )
    except ValueError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
