"""Atomic file writes, journals, schemas, timings, DuckDB."""
