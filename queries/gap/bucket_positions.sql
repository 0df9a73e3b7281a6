-- NLLs and the gap by position in the sequence, in buckets of equal width.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair; position_bucket b of $num_buckets
--            contains the positions p of 1..$seq_len with floor((p - 1) * $num_buckets / $seq_len) = b.
-- Grain out: one row per slice (ar_hit, other) x bucket of positions (low..high, both included).
-- Units:     share_of_tokens and gap_share are fractions of all tokens' sums; nll_* and delta_nll in nats per token.
WITH place_cells AS (
    SELECT position_bucket, ar_hit, tokens, nll_reference, nll_model
    FROM totals
    WHERE position_bucket IS NOT NULL
),

whole AS (
    SELECT sum(tokens) AS tokens, sum(nll_model) - sum(nll_reference) AS gap
    FROM place_cells
),

buckets AS (
    SELECT
        position_bucket::BIGINT AS bucket,
        ar_hit,
        sum(tokens)::BIGINT AS tokens,
        sum(nll_reference) AS sum_reference,
        sum(nll_model) AS sum_model
    FROM place_cells
    GROUP BY bucket, ar_hit
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        CASE WHEN buckets.ar_hit THEN 'ar_hit' ELSE 'other' END AS slice,
        -- The first position of a bucket is 1 + ceil(bucket * seq_len / num_buckets).
        1 + (buckets.bucket * $seq_len + $num_buckets - 1) // $num_buckets AS low,
        ((buckets.bucket + 1) * $seq_len + $num_buckets - 1) // $num_buckets AS high,
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
    ORDER BY buckets.ar_hit DESC, buckets.bucket
)

SELECT * FROM final
