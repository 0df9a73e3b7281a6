"""Writes a source archive anew, so that its bytes follow from its files alone: setuptools leaves the time and the user in it.

scripts/build.sh calls it. Members come sorted, at SOURCE_DATE_EPOCH, of nobody in particular, and the compression names no time.

    SOURCE_DATE_EPOCH=1700000000 python scripts/settle_sdist.py dist/recallkit-0.1.0.tar.gz
"""

from __future__ import annotations

import gzip
import os
import sys
import tarfile
from pathlib import Path


def settle(archive: Path, time: int) -> None:
    """Replaces a `.tar.gz` by one of the same files whose dates are all `time`, in seconds of the epoch."""
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
    """Settles the archives that the command line names."""
    for name in sys.argv[1:]:
        settle(Path(name), int(os.environ["SOURCE_DATE_EPOCH"]))


if __name__ == "__main__":
    main()
