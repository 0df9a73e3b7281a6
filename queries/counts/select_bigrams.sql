-- All bigrams as sort keys. Grain: one row per distinct bigram, sorted. Units: occurrences in the training text.
SELECT (first::UBIGINT << 32) | second::UBIGINT AS key, count
FROM bigrams
ORDER BY first, second
