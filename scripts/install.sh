#!/usr/bin/env bash
# Makes a virtual environment and installs into it what pip is told, with torch's CPU build where there is no GPU.
# usage: scripts/install.sh VENV PIP_ARGUMENTS...     (such as -e ".[fast]", or a wheel)
# CONSTRAINTS names another file of versions than constraints-cpu.txt: scripts/check_versions.sh tries the ends of what pyproject admits.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift
constraints=${CONSTRAINTS:-constraints-cpu.txt}
torch=$(grep -m 1 '^torch==' "$constraints" || echo torch)

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "recallkit needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 1; }
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
# pip would compile every module of every package, one after the other, which takes longer than all the rest: Python compiles those
# that are used when they are first imported.
install=("$venv/bin/python" -m pip --disable-pip-version-check --quiet install --no-compile)

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    echo "There is a GPU here, but make installs torch's CPU build. For CUDA run afterwards:"
    echo "    $venv/bin/python -m pip install --force-reinstall $torch"
fi
# The registry's own Linux build of torch brings gigabytes of CUDA packages; PyTorch's index has the CPU build. It is
# asked for torch alone, and only where pip would not find a CPU build without it.
if [ "$(uname)" = Linux ]; then
    found=$("$venv/bin/python" -m pip install --dry-run --no-deps "$torch" 2>/dev/null || true)
    case "$found" in
    *+cpu* | *"already satisfied"*) ;;
    *) "${install[@]}" --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -c "$constraints" torch ;;
    esac
fi
"${install[@]}" -c "$constraints" "$@"
env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c 'import altair, datasets, duckdb, lm_eval.evaluator, numba, polars, torch, transformers.modeling_utils'
