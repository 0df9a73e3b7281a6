-- Tokens and NLLs at two positions, of sequences that have both (the in-context-learning score, arXiv 2209.11895).
-- Grain in:  `tokens`, one row per predicted token, whole sequences: sequence, position, cluster, and nll_0, nll_1 ... in nats.
-- Grain out: one row per cluster of late tokens, whose sequences count for it, and early or late.
-- Units:     NLLs are summed, in nats.
WITH pairs AS (
    SELECT
        position = $late AS is_late,
        arg_max(cluster, position) OVER (PARTITION BY sequence) AS cluster,
        COLUMNS('nll_\d+')
    FROM tokens
    WHERE position IN ($early, $late)
    QUALIFY count(*) OVER (PARTITION BY sequence) = 2
    ORDER BY sequence, position
)

SELECT cluster, is_late, count(*) AS tokens, sum(COLUMNS('nll_\d+')::DOUBLE)
FROM pairs
GROUP BY cluster, is_late
