-- Splits the gap between a model and the reference into AR hits and other tokens, overall and by source.
-- Grain in:  `totals`, one row a cell (see total_cells) with the sums of one pair: nll_reference, nll_model.
-- Grain out: one row a source (ALL first) x slice (all, ar_hit, other), empty slices included.
-- Units:     tokens and shares are of the same source; nll_* and delta_nll in nats a token; ppl_* = exp(nll_*);
--            gap_share = summed difference in the slice / summed difference in the source, as a fraction.
-- Source:    Zoology section 3.1 and appendix C.1.
WITH label_cells AS (
    SELECT source, ar_hit, tokens, nll_reference, nll_model
    FROM totals
    WHERE count_class IS NOT NULL
),

slices AS (
    SELECT *
    FROM (VALUES (0, 'all', NULL), (1, 'ar_hit', true), (2, 'other', false)) AS names (slice_order, slice, ar_hit)
),

sources AS (
    SELECT 'ALL' AS source, NULL AS only_source, 0 AS source_order
    UNION ALL
    SELECT DISTINCT source, source, 1 FROM label_cells
),

sums AS (
    SELECT
        sources.source,
        sources.source_order,
        slices.slice,
        slices.slice_order,
        coalesce(sum(label_cells.tokens), 0)::BIGINT AS tokens,
        sum(label_cells.nll_reference) AS sum_reference,
        sum(label_cells.nll_model) AS sum_model
    FROM sources
    CROSS JOIN slices
    LEFT JOIN label_cells
        ON (sources.only_source IS NULL OR sources.only_source = label_cells.source)
        AND (slices.ar_hit IS NULL OR slices.ar_hit = label_cells.ar_hit)
    GROUP BY ALL
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
    INNER JOIN sums AS whole ON sums.source = whole.source AND sums.source_order = whole.source_order AND whole.slice = 'all'
    ORDER BY sums.source_order, sums.source, sums.slice_order
)

SELECT * FROM final
