"""Results as people and programs see them: tables for a terminal, plain data for `--json`.

Both are made from the same frames that are written to Parquet, so that a number is the same wherever it stands.
"""
