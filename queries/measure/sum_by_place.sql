-- Tokens, NLLs and probabilities by distance, by length of match and by position, AR hits apart from other tokens.
-- Grain in:  `tokens`, one row per predicted token: cluster, repeated, ar_hit, distance (null if its bigram does not occur earlier),
--            match_length, position (from 1), and of models 0, 1 ... nll_0 and first_nll_0 in nats, p_0 and first_p_0 = exp(-NLL).
-- Grain out: one row per cluster, AR hit or not, and class of one of the three that occurs; the other two are null.
-- Units:     classes of distance are named by their largest, a power of two; of matches by their least, 0, 1, 2, 3 and powers of two;
--            positions are `buckets` of equal width, numbered from 0. NLLs are summed, in nats; probabilities are summed.
-- Source:    Zoology section 3.1 (AR hits).
WITH classes AS (
    SELECT
        cluster,
        ar_hit,
        CASE WHEN repeated THEN 1 << greatest(ceil(log2(distance - 0.5::DOUBLE)), 0)::INTEGER END AS distance,
        CASE WHEN match_length < 4 THEN match_length ELSE 1 << floor(log2(match_length))::INTEGER END AS match_length,
        ((position - 1) * $buckets // $seq_len)::INTEGER AS position,
        COLUMNS('(first_)?(nll|p)_\d+')
    FROM tokens
)

SELECT cluster, ar_hit, distance, match_length, position, count(*)::INTEGER AS tokens, sum(COLUMNS('(first_)?(nll|p)_\d+')::DOUBLE)
FROM classes
GROUP BY GROUPING SETS ((cluster, ar_hit, distance), (cluster, ar_hit, match_length), (cluster, ar_hit, position))
