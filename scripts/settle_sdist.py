"""Rewrites a source archive so that its bytes depend on its files only: setuptools records the time and the user.

scripts/build.sh calls it. Members are sorted, dated SOURCE_DATE_EPOCH and without an owner; the gzip header has no time.

    SOURCE_DATE_EPOCH=1700000000 python scripts/settle_sdist.py dist/recallkit_lm-0.1.0.tar.gz
"""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
from pathlib import Path


def settle(archive: Path, time: int) -> None:
    """Replaces a `.tar.gz` by one of the same files, all dated `time`, in seconds since the epoch."""
    temporary = archive.with_suffix(".settled")
    with (
        tarfile.open(archive) as found,
        temporary.open("wb") as file,
        gzip.GzipFile(filename="", fileobj=file, mode="wb", mtime=time) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as settled,
    ):
        for member in sorted(found.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime, member.pax_headers = time, {}
            settled.addfile(member, found.extractfile(member) if member.isfile() else None)
    temporary.replace(archive)


def main() -> None:
    """Rewrites the archives on the command line."""
    for name in sys.argv[1:]:
        settle(Path(name), int(os.environ["SOURCE_DATE_EPOCH"]))


if __name__ == "__main__":
    main()
