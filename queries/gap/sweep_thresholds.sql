-- The AR hits' share of the gap at every threshold on the training count, without labelling anything again.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair; `thresholds`, one row per threshold:
--            threshold, count_class (the class of training counts that it closes).
-- Grain out: one row per threshold; its AR hits are the repeated tokens with train_count <= threshold.
-- Units:     share_of_tokens and gap_share are fractions of all tokens' sums; nll_* and delta_nll in nats per token.
WITH label_cells AS (
    SELECT repeated, count_class, tokens, nll_reference, nll_model
    FROM totals
    WHERE count_class IS NOT NULL
),

whole AS (
    SELECT sum(tokens) AS tokens, sum(nll_model) - sum(nll_reference) AS gap
    FROM label_cells
),

hits AS (
    SELECT
        thresholds.threshold,
        coalesce(sum(label_cells.tokens), 0)::BIGINT AS tokens,
        sum(label_cells.nll_reference) AS sum_reference,
        sum(label_cells.nll_model) AS sum_model
    FROM thresholds
    LEFT JOIN label_cells ON label_cells.repeated AND label_cells.count_class <= thresholds.count_class
    GROUP BY thresholds.threshold
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        hits.threshold,
        hits.tokens,
        hits.tokens / whole.tokens AS share_of_tokens,
        hits.sum_reference / hits.tokens AS nll_reference,
        hits.sum_model / hits.tokens AS nll_model,
        exp(hits.sum_reference / hits.tokens) AS ppl_reference,
        exp(hits.sum_model / hits.tokens) AS ppl_model,
        (hits.sum_model - hits.sum_reference) / hits.tokens AS delta_nll,
        (hits.sum_model - hits.sum_reference) / nullif(whole.gap, 0) AS gap_share
    FROM hits
    CROSS JOIN whole
    ORDER BY hits.threshold
)

SELECT * FROM final
