-- Tokens and NLLs of a reference and a model by what is gained from far context (docs/context.md): a gain is the NLL with the last ids alone
-- less that with the whole context.
-- Grain in:  `tokens`, one row per predicted token: cluster, repeated, ar_hit, and in nats the NLLs of the reference and the model with
--            the whole context, nll_0 and nll_1, and with the last ids alone, nll_2 and nll_3.
-- Grain out: one row per cluster, kind (0 AR hits, 1 other repeated bigrams, 2 not repeated), whether the reference gains, key token or not,
--            and whether the model gains, that occurs.
-- Units:     NLLs are summed, in nats.
-- Source:    key tokens as in LongPPL (arXiv 2410.23771, section 3.2), by the reference's NLLs; AR hits as in Zoology, section 3.1.
SELECT
    cluster,
    CASE WHEN NOT repeated THEN 2 WHEN ar_hit THEN 0 ELSE 1 END AS kind,
    nll_2 - nll_0 >= $gains::FLOAT AS reference_gains,
    nll_2 - nll_0 > $alpha::FLOAT AND nll_0 < -$beta::FLOAT AS is_key,
    nll_3 - nll_1 >= $gains::FLOAT AS model_gains,
    count(*) AS tokens,
    sum(COLUMNS('nll_\d+')::DOUBLE)
FROM tokens
GROUP BY cluster, kind, reference_gains, is_key, model_gains
