-- Recall of each model by the number of pairs.
-- Grain in:  `samples`, one row per model x pairs x sample (mqar/sum_samples).
-- Grain out: one row per model x pairs.
-- Units:     accuracies are shares of predictions whose argmax is right, guess is that share of a guess among the values before; *_nll nats per token, *_ppl exp of it. NULL if pairs
--            and queries leave no room for filler.
WITH totals AS (
    SELECT
        model,
        pairs,
        count(*) AS num_samples,
        sum(ar_tokens)::BIGINT AS ar_tokens,
        sum(ar_right) AS ar_right,
        sum(ar_guessed) AS ar_guessed,
        sum(ar_nats) AS ar_nats,
        sum(filler_tokens)::BIGINT AS filler_tokens,
        sum(filler_right) AS filler_right,
        sum(filler_nats) AS filler_nats
    FROM samples
    GROUP BY model, pairs
),

final AS (
    SELECT
        model,
        pairs,
        num_samples,
        ar_tokens,
        filler_tokens,
        ar_right / ar_tokens AS accuracy,
        ar_guessed / ar_tokens AS guess,
        ar_nats / ar_tokens AS ar_nll,
        exp(ar_nats / ar_tokens) AS ar_ppl,
        filler_right / nullif(filler_tokens, 0) AS filler_accuracy,
        filler_nats / nullif(filler_tokens, 0) AS filler_nll,
        exp(filler_nats / nullif(filler_tokens, 0)) AS filler_ppl
    FROM totals
)

SELECT
    model, pairs, num_samples, ar_tokens, filler_tokens, accuracy, guess, ar_nll, ar_ppl, filler_accuracy, filler_nll, filler_ppl
FROM final
ORDER BY model, pairs
