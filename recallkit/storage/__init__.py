"""Files that are whole or absent, journals, schemas, timings, DuckDB."""
