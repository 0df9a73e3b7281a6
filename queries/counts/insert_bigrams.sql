-- Appends a batch of bigrams. Grain: one row per distinct bigram; `batch` has the columns first, second, count, sorted.
INSERT INTO bigrams
SELECT first, second, count
FROM batch
