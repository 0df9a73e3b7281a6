-- Sums the NLLs of one batch of row-aligned tokens into cells, for any number of models at once.
-- Grain in:  `aligned`, one row per predicted token: sequence; nll_0 (the reference), nll_1 ... in nats, one column
--            per model; and two codes, since grouping by one integer costs half of grouping by its parts:
--            label = source * 256 + repeated * 128 + ar_hit * 64 + count_class (below 64),
--            place = position_bucket * 8192 + distance_bucket (below 64) * 128 + match_bucket (below 64) * 2 + ar_hit.
-- Grain out: two kinds of cell in one table, the keys of the other kind NULL:
--            label cells, sequence x source x repeated x ar_hit x count_class;
--            place cells, position_bucket x distance_bucket x match_bucket x ar_hit.
-- Units:     tokens in tokens; nll_0, nll_1 ... are sums in nats, in double precision.
WITH aligned_tokens AS (
    SELECT sequence, label, place, COLUMNS('^(nll_\d+)$')::DOUBLE AS '\1'
    FROM aligned
),

coded_cells AS (
    SELECT sequence, label, place, count(*) AS tokens, sum(COLUMNS('^(nll_\d+)$')) AS '\1'
    FROM aligned_tokens
    GROUP BY GROUPING SETS ((sequence, label), (place))
),

final AS (
    SELECT
        sequence,
        label >> 8 AS source,
        ((label >> 7) & 1) = 1 AS repeated,
        (coalesce(label >> 6, place) & 1) = 1 AS ar_hit,
        (label & 63)::UTINYINT AS count_class,
        (place >> 13)::UTINYINT AS position_bucket,
        ((place >> 7) & 63)::UTINYINT AS distance_bucket,
        ((place >> 1) & 63)::UTINYINT AS match_bucket,
        tokens,
        COLUMNS('^(nll_\d+)$') AS '\1'
    FROM coded_cells
)

SELECT * FROM final
