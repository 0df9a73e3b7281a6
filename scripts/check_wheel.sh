#!/usr/bin/env bash
# Builds the wheel, installs it alone, type-checks a user of it, and runs it outside the tree.
# usage: scripts/check_wheel.sh VENV [dependencies]
# VENV has `build` and mypy. The wheel uses VENV's packages, or those that it declares, downloaded, where that is asked for.
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

scripts/build.sh "$venv" "$work/dist"
bytes=$(cat "$work"/dist/*.whl | wc -c)
[ "$bytes" -lt 25000000 ] || { echo "the wheel has $bytes bytes, at most 25 MB are admitted: 23 are the models of the zoo" >&2; exit 1; }
if [ "${2:-}" = dependencies ]; then
    scripts/install.sh "$work/venv" "$work"/dist/*.whl
else
    "$venv/bin/python" -m venv "$work/venv"
    "$work/venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-deps "$work"/dist/*.whl
    site='import sysconfig; print(sysconfig.get_path("purelib"))'
    "$venv/bin/python" -c "$site" >"$("$work/venv/bin/python" -c "$site")/packages.pth"
fi
cd "$work"
export RECALLKIT_HOME="$work/home"
where=$("$work/venv/bin/python" -c 'import recallkit; print(recallkit.__file__)')
case "$where" in "$work"/*) ;; *) echo "not the wheel's recallkit: $where" >&2; exit 1 ;; esac
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import files

folders = {file.parts[0] for file in files("recallkit-lm") if file.parts[0] != ".."}
assert {name for name in folders if not name.endswith(".dist-info")} == {"recallkit"}, f"the wheel installs more than recallkit: {folders}"
from recallkit.kernels.token_nll.api import token_nll

assert callable(token_nll)
PYTHON
# Without type information everything would be Any, and the ignore comment below would be reported as unused.
cat >consumer.py <<'PYTHON'
from typing import assert_type

import recallkit

tables = recallkit.gap("zoo:attention", "zoo:rwkv")
assert_type(tables, recallkit.GapTables)
recallkit.gap("zoo:attention", "zoo:rwkv", workers="two")  # type: ignore[arg-type]
PYTHON
"$venv/bin/mypy" --strict --follow-imports=silent --cache-dir "$work/types" --python-executable "$work/venv/bin/python" consumer.py
"$repository/scripts/try_out.sh" "$work/venv"
echo "wheel: typed, works outside the tree"
