#!/usr/bin/env bash
# Builds sdist and wheel twice, which must give the same bytes, installs the wheel with its declared dependencies in a clean
# environment, type-checks a user of it, and runs it there.
# usage: scripts/check_wheel.sh
set -euo pipefail
cd "$(dirname "$0")/.."
repository=$PWD
work=$(mktemp -d)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -rf "$work"' EXIT

"${PYTHON:-python3}" -m venv "$work/tools"
"$work/tools/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile -c constraints-cpu.txt build mypy
scripts/build.sh "$work/tools" "$work/dist" | tee "$work/digests"
again() { (umask 077 && TZ=Asia/Kathmandu scripts/build.sh "$work/tools" "$work/again") | diff "$work/digests" - || { echo "two builds of one commit differ" >&2; exit 1; }; }
again &
building=$!
scripts/install.sh "$work/venv" "$work"/dist/*.whl
wait "$building"
cd "$work"
export RECALLKIT_HOME="$work/home"
where=$("$work/venv/bin/python" -c 'import recallkit; print(recallkit.__file__)')
case "$where" in "$work"/*) ;; *) echo "not the wheel's recallkit: $where" >&2; exit 1 ;; esac
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import files

folders = {file.parts[0] for file in files("recallkit-lm") if file.parts[0] != ".."}
assert {name for name in folders if not name.endswith(".dist-info")} == {"recallkit"}, f"the wheel installs more than recallkit: {folders}"
from recallkit.storage.db import query
from recallkit.kernels.token_nll.api import token_nll

assert callable(token_nll)
assert query("gap/attribute")
PYTHON
# Without type information everything would be Any, and the ignore comment below would be reported as unused.
cat >consumer.py <<'PYTHON'
from typing import assert_type

import recallkit

tables = recallkit.gap("zoo:attention", "zoo:rwkv")
assert_type(tables, recallkit.GapTables)
recallkit.gap("zoo:attention", "zoo:rwkv", workers="two")  # type: ignore[arg-type]
PYTHON
"$work/tools/bin/mypy" --strict --follow-imports=silent --cache-dir "$work/types" --python-executable "$work/venv/bin/python" consumer.py &
checking=$!
"$repository/scripts/try_out.sh" "$work/venv"
wait "$checking"
echo "wheel: the same bytes twice, typed, works outside the tree with its declared dependencies alone"
