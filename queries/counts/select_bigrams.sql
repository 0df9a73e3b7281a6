-- All bigrams as sort keys. Grain: one row per distinct bigram. Units: occurrences in the training text.
-- Rows come as they were inserted, sorted, which the digest of the table shows: nothing is sorted again.
SELECT (first::UBIGINT << 32) | second::UBIGINT AS key, count
FROM bigrams
