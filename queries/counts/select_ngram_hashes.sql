-- The sample of hashes of the training text's n-grams of one size. Grain: one row per distinct n-gram, sorted.
SELECT hash
FROM ngram_hashes
WHERE size = $size
ORDER BY hash
