-- Appends hashes of n-grams. Grain: one row per distinct n-gram of the sample; `batch` has the columns size, hash, sorted.
INSERT INTO ngram_hashes
SELECT size, hash
FROM batch
