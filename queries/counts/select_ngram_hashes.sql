-- The sample of hashes of the training text's n-grams of one size. Grain: one row per distinct n-gram.
-- Rows come as they were inserted, sorted, which the digest of the sample shows: nothing is sorted again.
SELECT hash
FROM ngram_hashes
WHERE size = $size
