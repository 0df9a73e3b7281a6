-- Appends a batch of bigrams. Grain: one row a distinct bigram; `batch` holds first, second, count, sorted.
INSERT INTO bigrams
SELECT first, second, count
FROM batch
