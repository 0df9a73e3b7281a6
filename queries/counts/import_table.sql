-- Reads a foreign table of bigram counts. Grain: one row per distinct bigram, sorted; repeated rows are summed.
-- Units: occurrences in the training text. `foreign_counts` is the unchanged Parquet or CSV file.
-- Fails at the first value that is missing or not whole: a cast would round it or accept it.
WITH foreign_rows AS (
    SELECT first, second, count
    FROM foreign_counts
),

checked AS (
    SELECT
        first,
        second,
        CASE
            WHEN first IS NULL OR second IS NULL OR count IS NULL THEN error('a row has no value in first, second or count')
            WHEN first::DOUBLE <> trunc(first::DOUBLE) OR second::DOUBLE <> trunc(second::DOUBLE) THEN error('a token id is not whole')
            WHEN count::DOUBLE <> trunc(count::DOUBLE) THEN error('a count is not whole')
            ELSE count::UBIGINT
        END AS count
    FROM foreign_rows
),

final AS (
    SELECT
        first::UINTEGER AS first,
        second::UINTEGER AS second,
        sum(count)::UBIGINT AS count
    FROM checked
    GROUP BY ALL
)

SELECT first, second, count
FROM final
WHERE count > 0
ORDER BY first, second
