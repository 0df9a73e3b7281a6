-- Makes the empty table of longer n-grams. Grain: one row per distinct n-gram; of order 3 to 5, that of the run.
-- Units: occurrences in the training text. Columns beyond the order are null. Rows are inserted sorted.
CREATE TABLE ngrams (
    first UINTEGER NOT NULL,
    second UINTEGER NOT NULL,
    third UINTEGER NOT NULL,
    fourth UINTEGER,
    fifth UINTEGER,
    count UBIGINT NOT NULL
);
