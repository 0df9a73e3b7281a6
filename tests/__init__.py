"""Tests, by package."""

import os

# On a busy machine any work is long: here its first line comes late, so that an error is all of stderr.
os.environ.setdefault("RECALLKIT_LOG_SECONDS", "30")
