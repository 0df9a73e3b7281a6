-- Makes the empty tables of a counts database.
-- Grain: bigrams, one row per distinct bigram; unigrams, one row per distinct token; meta, one row per fact about the run.
-- Units: occurrences in the training text. Rows are inserted sorted, which compresses them to about four bytes each.
CREATE TABLE bigrams (first UINTEGER NOT NULL, second UINTEGER NOT NULL, count UBIGINT NOT NULL);
CREATE TABLE unigrams (token UINTEGER NOT NULL, count UBIGINT NOT NULL);
CREATE TABLE meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL);
