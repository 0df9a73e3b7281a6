-- The gap between a model and the reference in every row of a table, of whatever its rows are: slices, buckets, thresholds.
-- Grain in:  `sums`, one row a row of the table (and a source): the columns that name it; tokens; sum_reference, sum_model, NLLs summed
--            over its tokens, in nats; whole_tokens and whole_gap (model minus reference, in nats), the sums over all tokens of the source.
-- Grain out: the same rows in the same order.
-- Units:     share_of_tokens and gap_share are fractions of the source's sums; nll_* and delta_nll in nats per token; ppl_* = exp(nll_*);
--            null where there is no token, or no gap.
-- Source:    Zoology section 3.1 and appendix C.1.
WITH means AS (
    SELECT
        * EXCLUDE (sum_reference, sum_model, whole_tokens, whole_gap),
        tokens / whole_tokens AS share_of_tokens,
        sum_reference / nullif(tokens, 0) AS nll_reference,
        sum_model / nullif(tokens, 0) AS nll_model,
        (sum_model - sum_reference) / nullif(tokens, 0) AS delta_nll,
        CASE WHEN tokens > 0 THEN (sum_model - sum_reference) / nullif(whole_gap, 0) END AS gap_share
    FROM sums
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        *,
        exp(nll_reference) AS ppl_reference,
        exp(nll_model) AS ppl_model
    FROM means
)

SELECT * FROM final
