-- The bigrams as they are written to Parquet. Grain: one row a distinct bigram, sorted.
SELECT first, second, count
FROM bigrams
ORDER BY first, second
