-- Recall by the distance of a query from its pair, in log2 buckets.
-- Grain in:  `queries`, one row per model x pairs x sample x query.
-- Grain out: one row per model x pairs x bucket (low..high, both included): 1; 2; 3 to 4; 5 to 8 ..., so that bucket b is (2^(b-1), 2^b].
-- Units:     low, high ids from the pair's key to the query's; accuracy the share of the bucket's queries, ar_nll nats per token.
WITH final AS (
    SELECT
        model,
        pairs,
        1::BIGINT << ceil(log2(distance))::INTEGER AS high,
        count(*) AS num_queries,
        count(*) FILTER (WHERE "right") / count(*) AS accuracy,
        sum(nll::DOUBLE) / count(*) AS ar_nll,
        exp(sum(nll::DOUBLE) / count(*)) AS ar_ppl
    FROM queries
    GROUP BY ALL
)

SELECT model, pairs, CASE WHEN high <= 1 THEN high ELSE high // 2 + 1 END AS low, high, num_queries, accuracy, ar_nll, ar_ppl
FROM final
ORDER BY model, pairs, low
