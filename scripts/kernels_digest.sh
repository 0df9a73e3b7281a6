#!/usr/bin/env bash
# Digest of all that decides whether the tests of kernels pass: their sources, the mixers that they compare with, and what runs them.
#   scripts/kernels_digest.sh VENV
set -euo pipefail
cd "$(dirname "$0")/.."
{
  find kernels tests/kernels recallkit/models/mixers tests/conftest.py -name '*.py' | LC_ALL=C sort | xargs sha256sum
  "$1/bin/python" -c "
import sys
from importlib.metadata import version
print(sys.version_info[:2], *map(version, ('torch', 'triton', 'numpy')))"
} | sha256sum
