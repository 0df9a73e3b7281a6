#!/usr/bin/env bash
# Builds sdist and wheel of the last commit, and prints their digests: the same bytes whoever builds it, when and where.
# usage: scripts/build.sh VENV FOLDER     (VENV has the package `build`)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# What lies beside the commit's files, their dates and permissions stay outside: all of it would go into the archives.
umask 022
[ -z "$(git status --porcelain)" ] || echo "what is not committed is not built" >&2
git -c tar.umask=0022 archive --format=tar --output="$work/commit.tar" HEAD
mkdir "$work/source"
tar -xf "$work/commit.tar" -C "$work/source"
export SOURCE_DATE_EPOCH; SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export PIP_CONSTRAINT="$PWD/constraints-cpu.txt"  # another setuptools writes its version, and other metadata

"$venv/bin/python" -m build --outdir "$work/dist" "$work/source" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$venv/bin/python" scripts/settle_sdist.py "$work"/dist/*.tar.gz
mv "$work"/dist/* "$folder"
cd "$folder"
sha256sum ./*
