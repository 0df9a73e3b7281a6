-- Overall figures of one score file. Grain: one row. Units: nll_nats per predicted token, ppl = exp of it, accuracy the
-- share of tokens that no vocabulary entry outranks, of those that have a rank.
WITH scored AS (
    SELECT nll, rank
    FROM scores
),

final AS (
    SELECT
        avg(nll::DOUBLE) AS nll_nats,
        exp(avg(nll::DOUBLE)) AS ppl,
        count(*) FILTER (WHERE rank = 0) / nullif(count(*) FILTER (WHERE rank >= 0), 0) AS accuracy
    FROM scored
)

SELECT nll_nats, ppl, accuracy
FROM final
