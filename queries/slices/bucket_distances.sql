-- Distances of repeated tokens to the latest earlier occurrence of their bigram, in log2 buckets.
-- Grain in:  `tokens`, one row per predicted token; `distance` is null if its bigram does not occur earlier.
-- Grain out: one row per source, and `ALL` first, x bucket of distances (low..high tokens back, both included) that is not empty.
-- Units:     tokens in tokens; share is a fraction of the repeated tokens of the row's source.
-- Distances are counted first, so that a few thousand rows are put into buckets instead of millions.
WITH repeated_tokens AS (
    SELECT source::VARCHAR AS source, distance
    FROM tokens
    WHERE distance IS NOT NULL
),

counted AS (
    SELECT source, distance, count(*) AS tokens
    FROM repeated_tokens
    GROUP BY source, distance
),

-- The binary digits of d - 1 are as many as the power of two that d does not exceed.
placed AS (
    SELECT source, tokens, CASE WHEN distance = 1 THEN 0 ELSE length(bin(distance - 1)) END AS power
    FROM counted
),

buckets AS (
    SELECT
        coalesce(source, 'ALL') AS source,
        grouping(source) = 1 AS is_all,
        (1::BIGINT << power) // 2 + 1 AS low,
        1::BIGINT << power AS high,
        sum(tokens)::BIGINT AS tokens
    FROM placed
    GROUP BY GROUPING SETS ((power), (source, power))
),

final AS (
    SELECT source, low, high, tokens, tokens / sum(tokens) OVER (PARTITION BY is_all, source) AS share, is_all
    FROM buckets
)

SELECT * EXCLUDE (is_all)
FROM final
ORDER BY is_all DESC, source, low
