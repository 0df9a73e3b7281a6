-- Appends the unigrams. Grain: one row per distinct token; `batch` has the columns token, count, sorted.
INSERT INTO unigrams
SELECT token, count
FROM batch
