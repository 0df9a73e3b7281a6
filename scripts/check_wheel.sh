#!/usr/bin/env bash
# Builds the wheel and the sdist, installs the wheel in a clean environment outside the tree, and runs it there.
# usage: scripts/check_wheel.sh VENV     (VENV: the environment of `make test`, whose packages the clean one borrows)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$venv/bin/python" -m build --outdir "$work/dist" . >"$work/build.log" 2>&1 || { cat "$work/build.log" >&2; exit 1; }
"$venv/bin/python" -m venv "$work/venv"
# Dependencies come from VENV's folder, after the new environment's own; recallkit itself only from the wheel.
site=$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' >"$site/borrowed.pth"
"$work/venv/bin/python" -m pip --disable-pip-version-check install --quiet --no-deps --ignore-installed "$work"/dist/*.whl
cd "$work"
export RECALLKIT_HOME="$work/home"
where=$("$work/venv/bin/python" -c 'import recallkit; print(recallkit.__file__)')
case "$where" in "$work"/*) ;; *) echo "not the wheel's recallkit: $where" >&2; exit 1 ;; esac
"$work/venv/bin/python" - <<'PYTHON'
import importlib.util
assert importlib.util.find_spec("queries") is None, "the queries folder must not be importable by itself"
kernels = importlib.util.find_spec("kernels")
assert kernels is None or "site-packages" in (kernels.origin or ""), kernels
from recallkit.kernels.token_nll.api import token_nll
from recallkit.db import query
assert query("gap/attribute_gap")
PYTHON
"$work/venv/bin/recallkit" --version
"$work/venv/bin/recallkit" demo
echo "wheel: works outside the tree"
