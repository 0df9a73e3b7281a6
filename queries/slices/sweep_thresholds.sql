-- The AR hits' share of all tokens at every threshold on the training count: 0 and the powers of two up to the largest count.
-- Grain in:  `tokens`, one row per predicted token, labelled with training counts.
-- Grain out: one row per threshold that some repeated token's count needs; its AR hits are the repeated tokens with train_count <= threshold.
-- Units:     share is a fraction of all tokens.
WITH sizes AS (
    SELECT count(*) AS tokens
    FROM tokens
),

counted AS (
    SELECT train_count, count(*) AS tokens
    FROM tokens
    WHERE repeated
    GROUP BY train_count
),

-- The binary digits of c - 1 are as many as the power of two that c does not exceed.
placed AS (
    SELECT
        CASE WHEN train_count < 2 THEN train_count ELSE 1::BIGINT << least(length(bin(train_count - 1)), 62) END AS threshold,
        sum(tokens) AS tokens
    FROM counted
    GROUP BY threshold
),

final AS (
    SELECT placed.threshold, sum(placed.tokens) OVER (ORDER BY placed.threshold) / sizes.tokens AS share
    FROM placed
    CROSS JOIN sizes
)

SELECT * FROM final
ORDER BY threshold
