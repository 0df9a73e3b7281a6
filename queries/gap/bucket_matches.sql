-- NLLs and the gap by length of the longest preceding context shared with an earlier occurrence.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair.
-- Grain out: one row per bucket of lengths (low..high tokens, both included: 0, 1, 2, 3, 4 to 7, 8 to 15 ...) x ar_hit.
--            Tokens whose bigram is not repeated are in bucket 0, repeated ones in all others.
-- Units:     share_of_tokens and gap_share are fractions of all tokens' sums; nll_* and delta_nll in nats per token.
WITH place_cells AS (
    SELECT match_bucket, ar_hit, tokens, nll_reference, nll_model
    FROM totals
    WHERE match_bucket IS NOT NULL
),

whole AS (
    SELECT sum(tokens) AS tokens, sum(nll_model) - sum(nll_reference) AS gap
    FROM place_cells
),

buckets AS (
    SELECT
        CASE WHEN match_bucket < 4 THEN match_bucket ELSE 1::BIGINT << (match_bucket - 2) END AS low,
        ar_hit,
        sum(tokens)::BIGINT AS tokens,
        sum(nll_reference) AS sum_reference,
        sum(nll_model) AS sum_model
    FROM place_cells
    GROUP BY low, ar_hit
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        buckets.ar_hit,
        buckets.low,
        CASE WHEN buckets.low < 4 THEN buckets.low ELSE 2 * buckets.low - 1 END AS high,
        buckets.tokens,
        buckets.tokens / whole.tokens AS share_of_tokens,
        buckets.sum_reference / buckets.tokens AS nll_reference,
        buckets.sum_model / buckets.tokens AS nll_model,
        exp(buckets.sum_reference / buckets.tokens) AS ppl_reference,
        exp(buckets.sum_model / buckets.tokens) AS ppl_model,
        (buckets.sum_model - buckets.sum_reference) / buckets.tokens AS delta_nll,
        (buckets.sum_model - buckets.sum_reference) / nullif(whole.gap, 0) AS gap_share
    FROM buckets
    CROSS JOIN whole
    ORDER BY buckets.ar_hit DESC, buckets.low
)

SELECT * FROM final
