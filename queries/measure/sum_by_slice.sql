-- Tokens and NLLs by the set of requested slices that contain a token.
-- Grain in:  `tokens`, one row per predicted token: cluster, source, slices (bit i is set if it is in slice i), and nll_0, nll_1 ... in nats.
-- Grain out: one row per cluster, source and set of slices that occurs.
-- Units:     NLLs are summed, in nats.
SELECT cluster, source, slices, count(*) AS tokens, sum(COLUMNS('nll_\d+')::DOUBLE)
FROM tokens
GROUP BY cluster, source, slices
