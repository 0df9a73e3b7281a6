#!/usr/bin/env bash
# Tests one end of the versions that pyproject.toml admits, the lowest or the newest, with the tests that depend on them.
# usage: scripts/check_versions.sh lowest|newest [VENV]     (VENV is kept; without it a temporary one is used)
# Not tested at the lower end: ruff, mypy, build, selenium and pytest itself, and the extras ray and gpu.
set -euo pipefail
case "${1:-}" in lowest | newest) end=$1 ;; *) echo "usage: scripts/check_versions.sh lowest|newest [VENV]" >&2; exit 2 ;; esac
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
venv=${2:-$work/venv}

# With the newest versions, deprecation warnings are errors; older libraries deprecate each other.
: >"$work/constraints.txt"
tolerated=()
if [ "$end" = lowest ]; then
    "${PYTHON:-python3}" scripts/lowest_versions.py pyproject.toml | grep -v '^pytest' >"$work/constraints.txt"
    tolerated=(-W default::DeprecationWarning -W default::PendingDeprecationWarning -W default::FutureWarning)
fi
CONSTRAINTS="$work/constraints.txt" scripts/install.sh "$venv" -e ".[fast]" "lm-eval[hf]" pytest pytest-timeout hypothesis zstandard
"$venv/bin/python" -m pip --disable-pip-version-check list --format freeze

scripts/try_out.sh "$venv" >"$work/tried.txt" || { cat "$work/tried.txt"; exit 1; }
export OMP_NUM_THREADS=1
"$venv/bin/python" -m pytest -q -p no:cacheprovider --basetemp "$work/tests" "${tolerated[@]}" \
    -m "not slow and not gpu and not ci" tests/queries tests/attribution tests/counting tests/slicing tests/text tests/recall tests/display \
    tests/doctor tests/commands/test_cli.py tests/models/test_control.py tests/models/test_hf.py tests/models/test_gguf.py \
    tests/kernels/test_token_nll.py
echo "$end versions: they work"
