-- Overall figures of one score file. Grain: one row. Units: nll_nats per predicted token, ppl = exp of it, accuracy the
-- share of tokens that are the model's first choice, of those that have a rank: without an argmax (-1) those that nothing outranks.
WITH scored AS (
    SELECT
        scores.nll,
        scores.rank,
        scores.rank = 0 AND scores.argmax IN (-1, tokens.token) AS is_right
    FROM scores
    POSITIONAL JOIN tokens
),

final AS (
    SELECT
        avg(nll::DOUBLE) AS nll_nats,
        exp(avg(nll::DOUBLE)) AS ppl,
        count(*) FILTER (WHERE is_right) / nullif(count(*) FILTER (WHERE rank >= 0), 0) AS accuracy
    FROM scored
)

SELECT nll_nats, ppl, accuracy
FROM final
