#!/usr/bin/env bash
# Builds sdist and wheel, installs the wheel with its declared dependencies in a clean environment, and runs it there.
# usage: scripts/check_wheel.sh VENV     (VENV has the package `build`)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m build --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
scripts/install.sh "$work/venv" "$work"/dist/*.whl
cd "$work"
export RECALLKIT_HOME="$work/home"
where=$("$work/venv/bin/python" -c 'import recallkit; print(recallkit.__file__)')
case "$where" in "$work"/*) ;; *) echo "not the wheel's recallkit: $where" >&2; exit 1 ;; esac
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import files

folders = {file.parts[0] for file in files("recallkit") if file.parts[0] != ".."}
assert {name.split("-")[0] for name in folders} == {"recallkit"}, f"the wheel installs more than recallkit: {folders}"
from recallkit.db import query
from recallkit.kernels.token_nll.api import token_nll

assert callable(token_nll)
assert query("gap/attribute_gap")
PYTHON
"$work/venv/bin/recallkit" --version
"$work/venv/bin/recallkit" gap zoo:attention zoo:rwkv
"$work/venv/bin/recallkit" eval-recall --limit 16
echo "wheel: works outside the tree, with its declared dependencies alone"
