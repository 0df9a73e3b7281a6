"""Tests, by package."""

import os

# Tests in one process are one long work: here its first line comes late, so that an error is all of
# stderr.
os.environ.setdefault("RECALLKIT_LOG_SECONDS", "3600")
