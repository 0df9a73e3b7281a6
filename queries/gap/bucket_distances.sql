-- NLLs and the gap of repeated tokens by distance to the bigram's latest earlier occurrence, in log2 buckets.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair.
-- Grain out: one row per bucket of distances (low..high tokens back, both included) x ar_hit; tokens that repeat nothing
--            have no distance and no row.
-- Units:     share_of_tokens and gap_share are fractions of all tokens' sums; nll_* and delta_nll in nats per token.
WITH place_cells AS (
    SELECT distance_bucket, ar_hit, tokens, nll_reference, nll_model
    FROM totals
    WHERE distance_bucket IS NOT NULL
),

whole AS (
    SELECT sum(tokens) AS tokens, sum(nll_model) - sum(nll_reference) AS gap
    FROM place_cells
),

buckets AS (
    SELECT
        1::BIGINT << (distance_bucket - 1) AS high,
        ar_hit,
        sum(tokens)::BIGINT AS tokens,
        sum(nll_reference) AS sum_reference,
        sum(nll_model) AS sum_model
    FROM place_cells
    WHERE distance_bucket > 0
    GROUP BY high, ar_hit
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        buckets.ar_hit,
        buckets.high // 2 + 1 AS low,
        buckets.high,
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
    ORDER BY buckets.ar_hit DESC, buckets.high
)

SELECT * FROM final
