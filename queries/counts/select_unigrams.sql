-- All tokens with their counts. Grain: one row per distinct token. Units: occurrences in the training text.
-- Rows come as they were inserted, sorted, which the digest of the table shows: nothing is sorted again.
SELECT token, count
FROM unigrams
