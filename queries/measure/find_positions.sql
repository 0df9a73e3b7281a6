-- The tokens at two positions, of sequences that have both (the in-context-learning score, arXiv 2209.11895).
-- Grain in:  `tokens`, one row per predicted token, whole sequences: sequence, position, cluster, and nll_0, nll_1 ... in nats.
-- Grain out: one row per token.
SELECT position, cluster, COLUMNS('nll_\d+')
FROM tokens
WHERE position IN ($early, $late)
QUALIFY count(*) OVER (PARTITION BY sequence) = 2
ORDER BY sequence, position
