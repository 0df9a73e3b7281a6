-- Recall by the distance of a query from its pair, in log2 buckets.
-- Grain in:  `bucketed`, one row per model x pairs x sample x query, with its `bucket` b: (2^(b-2), 2^(b-1)].
-- Grain out: one row per model x pairs x bucket (low..high, both included).
-- Units:     low, high ids from the pair's key to the query's; accuracy the share of the bucket's queries, ar_nll nats per token.
WITH placed AS (
    SELECT model, pairs, bucket::BIGINT AS bucket, "right", nll::DOUBLE AS nll
    FROM bucketed
),

final AS (
    SELECT
        model,
        pairs,
        CASE WHEN bucket <= 1 THEN bucket ELSE (1::BIGINT << (bucket - 2)) + 1 END AS low,
        CASE WHEN bucket = 0 THEN 0 ELSE 1::BIGINT << (bucket - 1) END AS high,
        count(*) AS num_queries,
        count(*) FILTER (WHERE "right") / count(*) AS accuracy,
        sum(nll) / count(*) AS ar_nll,
        exp(sum(nll) / count(*)) AS ar_ppl
    FROM placed
    GROUP BY model, pairs, bucket
)

SELECT model, pairs, low, high, num_queries, accuracy, ar_nll, ar_ppl
FROM final
ORDER BY model, pairs, low
