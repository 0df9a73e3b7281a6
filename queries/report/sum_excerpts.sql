-- The gap to the reference on AR hits by sequence or block, by which excerpts for the token view are chosen.
-- Grain in:  `tokens` (sequence, position, ar_hit), `reference` and `scores` (nll, nats): row i of each is the same token.
-- Grain out: one row per sequence and block of $longest positions, in the order of the rows; a sequence that is not longer is one block.
-- Units:     tokens and ar_hits in tokens; hit_nats = summed difference (model minus reference) on AR hits, in nats.
WITH aligned AS (
    SELECT
        tokens.sequence,
        (tokens.position - 1) // $longest AS block,
        tokens.ar_hit,
        scores.nll::DOUBLE - reference.nll::DOUBLE AS difference
    FROM tokens
    POSITIONAL JOIN reference
    POSITIONAL JOIN scores
),

final AS (
    SELECT
        sequence,
        block,
        count(*) AS tokens,
        count(*) FILTER (WHERE ar_hit) AS ar_hits,
        coalesce(sum(difference) FILTER (WHERE ar_hit), 0) AS hit_nats
    FROM aligned
    GROUP BY sequence, block
    ORDER BY sequence, block
)

SELECT sequence, block, tokens, ar_hits, hit_nats
FROM final
