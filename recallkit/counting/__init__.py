"""Training bigrams and longer n-grams, counted exactly into DuckDB."""
