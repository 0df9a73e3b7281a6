-- Appends a batch of longer n-grams. Grain: one row a distinct n-gram; `batch` holds first to fifth, count, sorted.
INSERT INTO ngrams
SELECT first, second, third, fourth, fifth, count
FROM batch
