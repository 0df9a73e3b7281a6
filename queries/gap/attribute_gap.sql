-- Splits the gap between a model and the reference into AR hits and other tokens, overall and by source.
-- Grain in:  `totals`, one row per cell (see total_cells) with the sums of one pair: nll_reference, nll_model.
-- Grain out: one row per source (ALL first) x slice (all, ar_hit, other), empty slices included.
-- Units:     tokens and shares are of the same source; nll_* and delta_nll in nats per token; ppl_* = exp(nll_*);
--            gap_share = summed difference in the slice / summed difference in the source, as a fraction.
-- Source:    Zoology section 3.1 and appendix C.1.
WITH label_cells AS (
    SELECT source, ar_hit, tokens, nll_reference, nll_model
    FROM totals
    WHERE count_class IS NOT NULL
),

slices AS (
    SELECT *
    FROM (VALUES (0, 'all'), (1, 'ar_hit'), (2, 'other')) AS names (slice_order, slice)
),

-- One pass over the cells: with thousands of sources, to match each of them against every cell takes minutes.
filled AS (
    SELECT
        coalesce(source, 'ALL') AS source,
        1 - grouping(source) AS source_order,
        CASE WHEN grouping(ar_hit) = 1 THEN 0 WHEN ar_hit THEN 1 ELSE 2 END AS slice_order,
        sum(tokens)::BIGINT AS tokens,
        sum(nll_reference) AS sum_reference,
        sum(nll_model) AS sum_model
    FROM label_cells
    GROUP BY GROUPING SETS ((), (ar_hit), (source), (source, ar_hit))
),

wholes AS (
    SELECT * FROM filled WHERE slice_order = 0
),

sums AS (
    SELECT
        wholes.source,
        wholes.source_order,
        slices.slice,
        slices.slice_order,
        coalesce(filled.tokens, 0) AS tokens,
        filled.sum_reference,
        filled.sum_model
    FROM wholes
    CROSS JOIN slices
    LEFT JOIN filled
        ON wholes.source = filled.source
        AND wholes.source_order = filled.source_order
        AND slices.slice_order = filled.slice_order
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        sums.source,
        sums.slice,
        sums.tokens,
        sums.tokens / whole.tokens AS share_of_tokens,
        sums.sum_reference / sums.tokens AS nll_reference,
        sums.sum_model / sums.tokens AS nll_model,
        exp(sums.sum_reference / sums.tokens) AS ppl_reference,
        exp(sums.sum_model / sums.tokens) AS ppl_model,
        (sums.sum_model - sums.sum_reference) / sums.tokens AS delta_nll,
        (sums.sum_model - sums.sum_reference) / nullif(whole.sum_model - whole.sum_reference, 0) AS gap_share
    FROM sums
    INNER JOIN wholes AS whole ON sums.source = whole.source AND sums.source_order = whole.source_order
    ORDER BY sums.source_order, sums.source, sums.slice_order
)

SELECT * FROM final
