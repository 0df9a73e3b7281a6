-- Makes the empty tables of a counts database.
-- Grain: bigrams, one row a distinct bigram; unigrams, one row a distinct token; meta, one row a fact about the run.
-- Units: occurrences in the training text. Rows are inserted sorted, which compresses them to about four bytes each.
CREATE TABLE bigrams (first UINTEGER NOT NULL, second UINTEGER NOT NULL, count UBIGINT NOT NULL);
CREATE TABLE unigrams (token UINTEGER NOT NULL, count UBIGINT NOT NULL);
CREATE TABLE meta (key VARCHAR NOT NULL, value VARCHAR NOT NULL);
