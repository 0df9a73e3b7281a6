-- Tokens and NLLs by what of a token is in its context, and by its bigram's training count: every threshold of AR hits;
-- beside its own NLL and probability those of the first occurrence of its bigram in the sequence, where nothing can be recalled.
-- Grain in:  `tokens`, one row per predicted token: cluster, context_class, train_count, and of models 0, 1 ... nll_0 and first_nll_0 in
--            nats, p_0 and first_p_0 = exp(-NLL), which are equal of a token that repeats nothing.
-- Grain out: one row per cluster, context class and class of counts that occurs.
-- Units:     a class of counts is named by its largest count, 0, a power of two, or one of the further cuts: `papers`, and `most`, the
--            largest count of an AR hit, with a quarter and half of it, twice and four times it; NLLs are summed, in nats; probabilities are summed.
-- Source:    Zoology section 3.1 and appendix C.1 (thresholds).
WITH classes AS (
    SELECT
        cluster,
        context_class::ENUM('bigram', 'token', 'new') AS context_class,
        -- log2(c - 1/2) rounded up is the power of two that c does not exceed: 1 -> 0, 2 -> 1, 3 and 4 -> 2.
        least(
            CASE WHEN train_count = 0 THEN 0 ELSE 1::BIGINT << greatest(ceil(log2(train_count - 0.5::DOUBLE)), 0)::INTEGER END,
            CASE WHEN train_count <= $papers THEN $papers END,
            CASE WHEN train_count <= $quarter THEN $quarter END,
            CASE WHEN train_count <= $half THEN $half END,
            CASE WHEN train_count <= $most THEN $most END,
            CASE WHEN train_count <= $double THEN $double END,
            CASE WHEN train_count <= $fourfold THEN $fourfold END
        )::BIGINT AS largest_count,
        COLUMNS('(first_)?(nll|p)_\d+')
    FROM tokens
    WHERE train_count IS NOT NULL -- of an index only those of repeated bigrams are known
)

SELECT cluster, context_class, largest_count, count(*)::INTEGER AS tokens, sum(COLUMNS('(first_)?(nll|p)_\d+')::DOUBLE)
FROM classes
GROUP BY cluster, context_class, largest_count
