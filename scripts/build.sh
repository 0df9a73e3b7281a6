#!/usr/bin/env bash
# Builds sdist and wheel of the last commit reproducibly, and prints their digests.
# usage: scripts/build.sh VENV FOLDER     (VENV has the package `build`)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Builds from a clean checkout: untracked files, dates and permissions would otherwise end up in the archives.
umask 022
[ -z "$(git status --porcelain)" ] || echo "what is not committed is not built" >&2
git -c tar.umask=0022 archive --format=tar --output="$work/commit.tar" HEAD
mkdir "$work/source"
tar -xf "$work/commit.tar" -C "$work/source"
export SOURCE_DATE_EPOCH; SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export PIP_CONSTRAINT="$PWD/constraints-cpu.txt"  # other versions of setuptools write other metadata

"$venv/bin/python" -m build --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$venv/bin/python" scripts/settle_sdist.py "$work"/dist/*.tar.gz
mv "$work"/dist/* "$folder"
cd "$folder"
sha256sum ./*
