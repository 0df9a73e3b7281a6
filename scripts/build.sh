#!/usr/bin/env bash
# Builds sdist and wheel of the last commit.
# usage: scripts/build.sh VENV FOLDER     (VENV has the package `build`)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
mkdir -p "$2"
folder=$(cd "$2" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# From a clean checkout: untracked files would otherwise end up in the archives.
[ -z "$(git status --porcelain)" ] || echo "what is not committed is not built" >&2
git archive --format=tar HEAD | tar -xf - -C "$work"
export SOURCE_DATE_EPOCH; SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
"$venv/bin/python" -m build --outdir "$folder" "$work" >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
cd "$folder"
sha256sum ./*
