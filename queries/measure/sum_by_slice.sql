-- Tokens and NLLs of AR hits, of other repeated bigrams, and of the rest, by source and by the set of requested slices that contain a token;
-- beside its own NLLs those of the first occurrence of its bigram in the sequence, where nothing can be recalled.
-- Grain in:  `tokens`, one row per predicted token: cluster, document, source, repeated, ar_hit (the rule: `slicing.labels.ar_hits`), slices (bit
--            i is set if it is in slice i), and in nats nll_0, nll_1 ... and first_0, first_1 ..., which are equal of a token that repeats nothing.
-- Grain out: one row per cluster, document, source, repeated, AR hit and set of slices that occurs.
-- Units:     NLLs are summed, in nats.
-- Source:    Zoology section 3.1.
SELECT cluster, document, source, repeated, ar_hit, slices, count(*) AS tokens, sum(COLUMNS('(nll|first)_\d+')::DOUBLE)
FROM tokens
GROUP BY cluster, document, source, repeated, ar_hit, slices
