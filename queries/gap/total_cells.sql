-- Sums the cells of all batches over sequences and batches: every table of the gap is computed from the result.
-- Grain in:  `cells`, one row per cell of a batch (see aggregate_cells).
-- Grain out: one row per label cell without its sequence, or a place cell.
-- Units:     tokens in tokens; nll_0 (the reference), nll_1 ... are sums in nats.
WITH batch_cells AS (
    SELECT * FROM cells
),

final AS (
    SELECT
        source,
        repeated,
        ar_hit,
        count_class,
        position_bucket,
        distance_bucket,
        match_bucket,
        sum(tokens)::BIGINT AS tokens,
        sum(COLUMNS('^(nll_\d+)$')) AS '\1'
    FROM batch_cells
    GROUP BY source, repeated, ar_hit, count_class, position_bucket, distance_bucket, match_bucket
    ORDER BY source, repeated, ar_hit, count_class, position_bucket, distance_bucket, match_bucket
)

SELECT * FROM final
