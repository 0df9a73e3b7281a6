-- Each model's result on each sequence.
-- Grain in:  `queries`, one row per model x pairs x sample x query; `fillers`, one row per model x pairs x sample.
-- Grain out: one row per model x pairs x sample.
-- Units:     *_tokens and *_right predictions, *_nats summed NLL in nats; `ar` the queried values, `filler` the filler of the tail;
--            ar_guessed those that are expected to be right where each is a guess among the values before it.
WITH asked AS (
    SELECT
        model,
        pairs,
        sample,
        count(*) AS ar_tokens,
        count(*) FILTER (WHERE "right") AS ar_right,
        sum(1 / choices) AS ar_guessed,
        sum(nll::DOUBLE) AS ar_nats
    FROM queries
    GROUP BY model, pairs, sample
),

final AS (
    SELECT
        asked.model,
        asked.pairs,
        asked.sample,
        asked.ar_tokens,
        asked.ar_right,
        asked.ar_guessed,
        asked.ar_nats,
        fillers.filler_tokens,
        fillers.filler_right,
        fillers.filler_nll AS filler_nats
    FROM asked
    INNER JOIN fillers USING (model, pairs, sample)
)

SELECT model, pairs, sample, ar_tokens, ar_right, ar_guessed, ar_nats, filler_tokens, filler_right, filler_nats
FROM final
ORDER BY model, pairs, sample
