-- Tokens whose boundaries are not both boundaries of the model's own tokenizer, overall and among AR hits.
-- Grain in:  `tokens` (ar_hit) and `scores` (exact), row i of each the same token.
-- Grain out: one row per slice (all, ar_hit, other). Units: tokens; share as a fraction of the slice, NULL if it is empty.
WITH aligned AS (
    SELECT tokens.ar_hit, NOT scores.exact AS inexact
    FROM tokens
    POSITIONAL JOIN scores
),

counted AS (
    SELECT
        CASE WHEN grouping(ar_hit) = 1 THEN 'all' WHEN ar_hit THEN 'ar_hit' ELSE 'other' END AS slice,
        count(*) AS tokens,
        count(*) FILTER (WHERE inexact) AS inexact
    FROM aligned
    GROUP BY GROUPING SETS ((), (ar_hit))
),

final AS (
    SELECT slice, tokens, inexact, inexact / tokens AS share
    FROM counted
    ORDER BY slice
)

SELECT slice, tokens, inexact, share FROM final
