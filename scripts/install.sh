#!/usr/bin/env bash
# Creates a virtual environment and installs the given pip arguments, with torch's CPU build where there is no GPU.
# usage: scripts/install.sh VENV PIP_ARGUMENTS...     (such as -e ".[fast]", or a wheel)
# CONSTRAINTS names another constraints file than constraints-cpu.txt: scripts/check_versions.sh tests the bounds of pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$1
shift
constraints=${CONSTRAINTS:-constraints-cpu.txt}
torch=$(grep -m 1 '^torch==' "$constraints" || echo torch)

python=${PYTHON:-python3}
"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "recallkit needs Python 3.11 or newer; name one with PYTHON=..." >&2; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT

# step WHAT COMMAND...: says what is done, and does it; what it prints is shown on a terminal as it comes, elsewhere if it fails.
step() {
    printf '%4d s  %s\n' "$SECONDS" "$1"
    local what=$1 code=0
    shift
    if [ -t 1 ]; then "$@" || code=$?; else "$@" >"$log" 2>&1 || { code=$?; cat "$log" >&2; }; fi
    [ "$code" = 0 ] || { echo "failed after $SECONDS s: $what" >&2; exit "$code"; }
}

[ -x "$venv/bin/python" ] || step "a virtual environment in $venv" "$python" -m venv "$venv"
# pip would byte-compile every module of every package, which takes longer than the rest: Python compiles modules
# when they are first imported.
install=("$venv/bin/python" -m pip --disable-pip-version-check install --no-compile)
[ -t 1 ] || install+=(--quiet)

if command -v nvidia-smi >/dev/null && nvidia-smi >/dev/null 2>&1; then
    echo "There is a GPU here, but make installs torch's CPU build. For CUDA run afterwards:"
    echo "    $venv/bin/python -m pip install --force-reinstall $torch"
fi
# PyPI's Linux build of torch depends on gigabytes of CUDA packages; PyTorch's index has the CPU build. It is
# used for torch only, and only where pip would not find a CPU build without it.
if [ "$(uname)" = Linux ]; then
    found=$("$venv/bin/python" -m pip install --dry-run --no-deps "$torch" 2>/dev/null || true)
    case "$found" in
    *+cpu* | *"already satisfied"*) ;;
    *)
        step "torch, its CPU build (0.7 GB on disk)" \
            "${install[@]}" --no-deps --extra-index-url https://download.pytorch.org/whl/cpu -c "$constraints" torch
        ;;
    esac
fi
step "$* and the packages that it needs (about 3 GB on disk with torch: some minutes)" "${install[@]}" -c "$constraints" "$@"
step "modules compiled by a first import" env -u PYTHONDONTWRITEBYTECODE "$venv/bin/python" -c \
    'import altair, datasets, duckdb, lm_eval.evaluator, numba, polars, torch, transformers.modeling_utils'
printf '%4d s  installed in %s\n' "$SECONDS" "$venv"
