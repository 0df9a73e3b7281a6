"""The checks, a line each, with the remedy below those that are not ok."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from recallkit.display import console
from recallkit.display.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recallkit.doctor.checks import Check
    from recallkit.doctor.sizes import Part


def doctor_json(checks: Sequence[Check]) -> dict[str, Any]:
    """The overall status, and each check."""
    from recallkit.doctor.checks import worst

    return {"status": worst(list(checks)), "checks": [check.to_json() for check in checks]}


def print_doctor(checks: Sequence[Check]) -> None:
    """Status, name and what was found, in groups; lines are not wrapped, so that they can be pasted elsewhere."""
    width, group = max(len(check.name) for check in checks), ""
    for check in checks:
        if check.group != group:
            group = check.group
            console.print_line(group.capitalize(), is_path=True)
        console.print_indented(f"{check.status:<4}  {check.name:<{width}}  {check.found}", 2)
        if check.remedy and check.status != "ok":
            console.print_indented(f"-> {check.remedy}", 8 + width + 2)
    console.print_line(summary(checks), is_path=True)


def sizes_json(parts: Sequence[Part]) -> dict[str, Any]:
    """The whole, and each part."""
    return {"bytes": sum(part.size for part in parts), "parts": [part.to_json() for part in parts]}


def print_sizes(parts: Sequence[Part]) -> None:
    """Megabytes of each part, the largest first."""
    rows = [[part.name, f"{part.size / 1e6:,.1f}", f"{len(part.packages)}", part.purpose] for part in parts if part.packages]
    packages, size = sum(len(part.packages) for part in parts), sum(part.size for part in parts)
    besides = ", ".join(part.name for part in parts if not part.packages)
    caption = f"{size / 1e6:,.0f} MB, {packages} packages. Each with what it adds to those that pyproject.toml names before it. "
    caption += f"Required, and there because of them: {besides or 'none'}."
    console.print_table(Table("What the installed packages take", ["", "MB", "packages", "for"], rows, caption))


def failure_line(checks: Sequence[Check]) -> str | None:
    """Which checks failed, and where what to do about them is; None if none did."""
    failed = [check.name for check in checks if check.status == "fail"]
    return f"failed: {', '.join(failed)}; the remedy is given with each of these checks" if failed else None


def summary(checks: Sequence[Check]) -> str:
    """The checks that are not ok, by name."""
    found = {status: [check.name for check in checks if check.status == status] for status in ("fail", "warn")}
    counts = [
        f"{len(names)} {word}: {', '.join(names)}" for word, names in (("failed", found["fail"]), ("with warnings", found["warn"])) if names
    ]
    return f"{len(checks)} checks; " + ("; ".join(counts) or "all passed") + "."
