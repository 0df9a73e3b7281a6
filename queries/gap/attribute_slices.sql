-- The gap between a model and the reference in slices that may overlap, overall and by source.
-- Grain in:  `slice_sums`, one row a source x slice (slice_order, slice), empty ones included, with sums of one pair: tokens,
--            nll_reference, nll_model; `totals`, one row a cell (see total_cells) with the sums of the same pair.
-- Grain out: one row a source (ALL first) x slice, empty slices included; sources that `totals` lacks have none.
-- Units:     tokens and shares are of the same source; nll_* and delta_nll in nats per token; ppl_* = exp(nll_*);
--            gap_share = summed difference in the slice / summed difference in the source, as a fraction.
-- Source:    Zoology section 3.1 and appendix C.1, for any slice.
WITH wholes AS (
    SELECT
        coalesce(source, 'ALL') AS source,
        1 - grouping(source) AS source_order,
        sum(tokens) AS tokens,
        sum(nll_model) - sum(nll_reference) AS gap
    FROM totals
    WHERE count_class IS NOT NULL
    GROUP BY GROUPING SETS ((), (source))
),

sums AS (
    SELECT
        coalesce(source, 'ALL') AS source,
        1 - grouping(source) AS source_order,
        slice_order,
        slice,
        sum(tokens)::BIGINT AS tokens,
        CASE WHEN sum(tokens) > 0 THEN sum(nll_reference) END AS sum_reference,
        CASE WHEN sum(tokens) > 0 THEN sum(nll_model) END AS sum_model
    FROM slice_sums
    GROUP BY GROUPING SETS ((slice_order, slice), (source, slice_order, slice))
),

final AS (
    SELECT
        $reference AS reference,
        $model AS model,
        sums.source,
        sums.slice,
        sums.tokens,
        sums.tokens / wholes.tokens AS share_of_tokens,
        sums.sum_reference / nullif(sums.tokens, 0) AS nll_reference,
        sums.sum_model / nullif(sums.tokens, 0) AS nll_model,
        exp(sums.sum_reference / nullif(sums.tokens, 0)) AS ppl_reference,
        exp(sums.sum_model / nullif(sums.tokens, 0)) AS ppl_model,
        (sums.sum_model - sums.sum_reference) / nullif(sums.tokens, 0) AS delta_nll,
        (sums.sum_model - sums.sum_reference) / nullif(wholes.gap, 0) AS gap_share
    FROM sums
    INNER JOIN wholes ON sums.source = wholes.source AND sums.source_order = wholes.source_order
    ORDER BY sums.source_order, sums.source, sums.slice_order
)

SELECT * FROM final
