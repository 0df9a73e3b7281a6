-- Reads a foreign table of bigram counts. Grain: one row a distinct bigram, sorted; repeated rows are added up.
-- Units: occurrences in the training text. `foreign_counts` is the Parquet or CSV file as it is.
WITH foreign_rows AS (
    SELECT first, second, count
    FROM foreign_counts
),

final AS (
    SELECT
        first::UINTEGER AS first,
        second::UINTEGER AS second,
        sum(count::UBIGINT)::UBIGINT AS count
    FROM foreign_rows
    GROUP BY ALL
)

SELECT first, second, count
FROM final
WHERE count > 0
ORDER BY first, second
