-- Sizes of the slices. Grain: one row per source, and `ALL` first. Units: predicted tokens; shares are of a row's tokens.
-- `ar_hits` and its share are null if the slices were made without training counts.
WITH labelled AS (
    SELECT source, repeated, ar_hit
    FROM tokens
),

counted AS (
    SELECT
        coalesce(source::VARCHAR, 'ALL') AS source,
        grouping(source) = 1 AS is_all,
        count(*) AS tokens,
        count(*) FILTER (WHERE repeated) AS repeated,
        CASE WHEN count(ar_hit) > 0 THEN count(*) FILTER (WHERE ar_hit) END AS ar_hits
    FROM labelled
    GROUP BY GROUPING SETS ((), (source))
),

final AS (
    SELECT
        source,
        tokens,
        repeated,
        repeated / tokens AS repeated_share,
        ar_hits,
        ar_hits / tokens AS ar_hit_share,
        is_all
    FROM counted
    WHERE tokens > 0
)

SELECT * EXCLUDE (is_all)
FROM final
ORDER BY is_all DESC, tokens DESC, source
