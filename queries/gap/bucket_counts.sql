-- NLLs and the gap by training count of the bigram (Zoology figure 1: by training frequency), in log2 buckets.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair; `count_classes`, one row per class
--            of training counts: count_class, threshold (its largest count), low and high of its log2 bucket.
-- Grain out: one row per bucket of counts (low..high, both included) x repeated (the bigram occurs earlier in the sequence).
-- Units:     share_of_tokens and gap_share are fractions of all tokens' sums; nll_* and delta_nll in nats per token.
WITH label_cells AS (
    SELECT totals.*, count_classes.low, count_classes.high
    FROM totals
    INNER JOIN count_classes ON totals.count_class = count_classes.count_class
),

whole AS (
    SELECT sum(tokens) AS tokens, sum(nll_model) - sum(nll_reference) AS gap
    FROM label_cells
),

buckets AS (
    SELECT
        low,
        high,
        repeated,
        sum(tokens)::BIGINT AS tokens,
        sum(nll_reference) AS sum_reference,
        sum(nll_model) AS sum_model
    FROM label_cells
    GROUP BY low, high, repeated
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        buckets.repeated,
        buckets.low,
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
    ORDER BY buckets.repeated DESC, buckets.low
)

SELECT * FROM final
