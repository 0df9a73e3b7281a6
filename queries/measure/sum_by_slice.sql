-- Tokens, NLLs and probabilities by document, source and the set of slices that contain a token; beside its own those of the first
-- occurrence of its bigram in the sequence, where nothing can be recalled. Recall gain is the difference of the two probabilities.
-- Grain in:  `tokens`, one row per predicted token: cluster, document, source, repeated, slices (bit i is set if it is in slice i; bit 1
--            is AR hits, whose rule is `slicing.labels.ar_hits`), and of models 0, 1 ... nll_0 and first_nll_0 in nats, p_0 and
--            first_p_0 = exp(-NLL), which are equal of a token that repeats nothing.
-- Grain out: one row per cluster, document and set of slices that occurs; a document is of one source. `repeats`: tokens whose bigram is
--            in the context already.
-- Units:     NLLs are summed, in nats; probabilities are summed.
-- Source:    Zoology section 3.1 (AR hits).
SELECT cluster, document, any_value(source) AS source, slices, count(*) AS tokens, count_if(repeated) AS repeats,
    sum(COLUMNS('(first_)?(nll|p)_\d+')::DOUBLE)
FROM tokens
GROUP BY cluster, document, slices
