-- Makes the empty table of hashes of the training text's n-grams. Grain: one row per distinct n-gram of the sample, by size.
-- `size`: ids in the n-gram. Rows are inserted sorted.
CREATE TABLE ngram_hashes (size UTINYINT NOT NULL, hash UBIGINT NOT NULL);
