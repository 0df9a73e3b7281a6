-- Sums the NLLs of one batch of row-aligned tokens into cells, for any number of models at once.
-- Grain in:  `aligned`, one row a predicted token; nll_0 (the reference), nll_1 ... in nats, one column a model.
-- Grain out: two kinds of cell in one table, the keys of the other kind NULL:
--            label cells, sequence x source x repeated x ar_hit x count_class;
--            place cells, position_bucket x distance_bucket x ar_hit.
-- Units:     tokens in tokens; nll_0, nll_1 ... are sums in nats, in double precision.
WITH aligned_tokens AS (
    SELECT
        sequence,
        source,
        repeated,
        ar_hit,
        count_class,
        position_bucket,
        distance_bucket,
        COLUMNS('^nll_\d+$')::DOUBLE
    FROM aligned
),

final AS (
    SELECT
        sequence,
        source,
        repeated,
        ar_hit,
        count_class,
        position_bucket,
        distance_bucket,
        count(*) AS tokens,
        sum(COLUMNS('^(nll_\d+)$')) AS '\1'
    FROM aligned_tokens
    GROUP BY GROUPING SETS (
        (sequence, source, repeated, ar_hit, count_class),
        (position_bucket, distance_bucket, ar_hit)
    )
)

SELECT * FROM final
