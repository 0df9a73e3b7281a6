-- Appends the unigrams. Grain: one row a distinct token; `batch` holds token, count, sorted.
INSERT INTO unigrams
SELECT token, count
FROM batch
