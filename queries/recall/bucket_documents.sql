-- Recall by a whole number that each prompt has (distance of the answer, its occurrences, length), in log2 buckets.
-- Grain in:  `bucketed`, one row per model x prompt with its `bucket` b: 0 contains 0, b contains (2^(b-2), 2^(b-1)];
--            rows without one are left out.
-- Grain out: one row per model x task x bucket (low..high, both included).
-- Units:     accuracy a share of the bucket's rows, answer_nll nats per token of its answers.
WITH placed AS (
    SELECT model, task, bucket::BIGINT AS bucket, contains, answer_nll * answer_tokens AS nats, answer_tokens
    FROM bucketed
    WHERE bucket IS NOT NULL
),

final AS (
    SELECT
        model,
        task,
        CASE WHEN bucket <= 1 THEN bucket ELSE (1::BIGINT << (bucket - 2)) + 1 END AS low,
        CASE WHEN bucket = 0 THEN 0 ELSE 1::BIGINT << (bucket - 1) END AS high,
        count(*) AS num_rows,
        avg(contains::INTEGER) AS accuracy,
        sum(nats) / nullif(sum(answer_tokens) FILTER (WHERE nats IS NOT NULL), 0) AS answer_nll
    FROM placed
    GROUP BY model, task, bucket
)

SELECT model, task, low, high, num_rows, accuracy, answer_nll
FROM final
ORDER BY task, low, model
