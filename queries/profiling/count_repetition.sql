-- How much is repeated, how far back and where in a sequence, by source: each figure of a profile is a sum of these rows.
-- Grain in:  `tokens`, one row per predicted token (tokens.parquet); `content` (id): the tokens that content bigrams consist of.
-- Grain out: `grouped_by` is what a row is of: of a source's document; its part of the sequence, 0 to 31; its distance; or its document
--            and range of distances, which begins at `tail`: 1, 2, 4, 8 ..., or 1 and $x_min where that is given.
-- Units:     tokens; *_logs: the sum of ln(distance), in decimals, so that the order in which threads add does not decide its last bit.
-- Source:    Zoology appendix D (a repeated bigram is one that occurs earlier in its sequence).
WITH bigrams AS (
    SELECT
        CAST(source AS VARCHAR) AS source,
        document,
        (position - 1) * 32 // $seq_len AS part,  -- of 2048 positions 1 to 64 are part 0, 65 to 128 part 1
        distance,
        CASE
            WHEN $x_min IS NULL THEN 1 << CAST(floor(log2(distance)) AS BIGINT)  -- distances 4 to 7 are in the tail range of 4
            WHEN distance >= $x_min THEN $x_min
            WHEN distance IS NOT NULL THEN 1
        END AS tail,
        CAST(ln(distance) AS DECIMAL(18, 12)) AS log_distance,
        repeated,
        prev_token IN (SELECT id FROM content) AND token IN (SELECT id FROM content) AS is_content,
        occurrences = 1 AS is_first_repetition,
        coalesce(ar_hit, FALSE) AS ar_hit
    FROM tokens
),

final AS (
    SELECT
        CASE
            WHEN grouping(tail) = 0 THEN 'tail'
            WHEN grouping(distance) = 0 THEN 'distance'
            WHEN grouping(part) = 0 THEN 'part'
            ELSE 'document'
        END AS grouped_by,
        source,
        document,
        part,
        distance,
        tail,
        count(*) AS tokens,
        count(*) FILTER (WHERE is_content) AS content_tokens,
        count(*) FILTER (WHERE repeated) AS repeated,
        count(*) FILTER (WHERE repeated AND is_content) AS content_repeated,
        count(*) FILTER (WHERE repeated AND is_content AND is_first_repetition) AS distinct_repeated,
        count(*) FILTER (WHERE ar_hit) AS ar_hits,
        CAST(coalesce(sum(log_distance) FILTER (WHERE repeated), 0) AS DOUBLE) AS repeated_logs,
        CAST(coalesce(sum(log_distance) FILTER (WHERE repeated AND is_content), 0) AS DOUBLE) AS content_repeated_logs,
        CAST(coalesce(sum(log_distance) FILTER (WHERE ar_hit), 0) AS DOUBLE) AS ar_hits_logs
    FROM bigrams
    GROUP BY GROUPING SETS ((source, document), (source, part), (source, distance), (source, document, tail))
)

SELECT * FROM final
