-- Recall by whole numbers that each prompt has (distance of the answer, its occurrences, length), in log2 buckets.
-- Grain in:  `documents`, one row per model x prompt; rows without a number are left out, and needles, which have a depth.
-- Grain out: one row per `bucketed` (the column's name) x model x task x bucket (low..high, both included):
--            0; 1; 2; 3 to 4; 5 to 8 ..., so that bucket b of the numbers above 0 is (2^(b-1), 2^b].
-- Units:     accuracy a share of the bucket's rows, answer_nll nats per token of its answers.
WITH placed AS (
    UNPIVOT (
        SELECT
            model,
            task,
            contains,
            answer_nll * answer_tokens AS nats,
            answer_tokens,
            answer_distance::BIGINT AS answer_distance,
            occurrences::BIGINT AS occurrences,
            prompt_tokens::BIGINT AS prompt_tokens
        FROM documents
        WHERE depth IS NULL
    )
    ON answer_distance, occurrences, prompt_tokens
    INTO NAME bucketed VALUE number
),

final AS (
    SELECT
        bucketed,
        model,
        task,
        CASE WHEN number = 0 THEN 0 ELSE 1::BIGINT << ceil(log2(number))::INTEGER END AS high,
        count(*) AS num_rows,
        avg(contains::INTEGER) AS accuracy,
        sum(nats) / nullif(sum(answer_tokens) FILTER (WHERE nats IS NOT NULL), 0) AS answer_nll
    FROM placed
    GROUP BY ALL
)

SELECT
    bucketed,
    model,
    task,
    CASE WHEN high <= 1 THEN high ELSE high // 2 + 1 END AS low,
    high,
    num_rows,
    accuracy,
    answer_nll
FROM final
ORDER BY bucketed, task, low, model
