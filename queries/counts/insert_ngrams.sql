-- Appends a batch of longer n-grams. Grain: one row per distinct n-gram; `batch` has the columns first to fifth, count, sorted.
INSERT INTO ngrams
SELECT first, second, third, fourth, fifth, count
FROM batch
