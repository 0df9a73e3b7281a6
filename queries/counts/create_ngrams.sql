-- Makes the empty table of longer n-grams. Grain: one row a distinct n-gram; its order is that of the run, 3 to 5.
-- Units: occurrences in the training text. Columns beyond the order are null. Rows are inserted sorted.
CREATE TABLE ngrams (
    first UINTEGER NOT NULL,
    second UINTEGER NOT NULL,
    third UINTEGER NOT NULL,
    fourth UINTEGER,
    fifth UINTEGER,
    count UBIGINT NOT NULL
);
