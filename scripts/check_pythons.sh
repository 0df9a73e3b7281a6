#!/usr/bin/env bash
# Installs and runs the wheel in every Python from 3.11 on that is found here; reports those that were not found.
# usage: [MINORS="12 13"] scripts/check_pythons.sh VENV [FOLDER]     (VENV has the package `build`; FOLDER keeps environments: python3.12 ...)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
kept=${2:-}
folder=${kept:-$work}

scripts/build.sh "$venv" "$work/dist"
passed=() failed=() missing=()
for minor in ${MINORS:-11 12 13 14}; do
    # Version managers leave shims for Pythons that are not installed: only one that starts counts.
    python=""
    for candidate in "python3.$minor" "$HOME"/.pyenv/versions/3."$minor".*/bin/python; do
        if command -v "$candidate" >/dev/null && "$candidate" -c "import sys; sys.exit(sys.version_info[:2] != (3, $minor))" 2>/dev/null; then
            python=$candidate
        fi
    done
    if [ -z "$python" ]; then
        missing+=("3.$minor")
        continue
    fi
    echo "Python 3.$minor: $("$python" -V)"
    target="$folder/python3.$minor"
    if PYTHON=$python scripts/install.sh "$target" "$work"/dist/*.whl && scripts/try_out.sh "$target" >"$work/tried.txt" 2>&1; then
        passed+=("3.$minor")
    else
        [ ! -f "$work/tried.txt" ] || tail -n 30 "$work/tried.txt"
        failed+=("3.$minor")
    fi
    rm -f "$work/tried.txt"
    [ -n "$kept" ] || rm -rf "$target"
done
echo "passed: ${passed[*]:-none}; failed: ${failed[*]:-none}; not found here: ${missing[*]:-none}"
[ ${#failed[@]} = 0 ] && [ ${#passed[@]} -gt 0 ]
