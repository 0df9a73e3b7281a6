-- Recall of needles in a haystack, by the length of the prompt and the depth of the needle.
-- Grain in:  `documents`, one row per model x prompt; rows without a depth, which are of other tasks, are left out.
-- Grain out: one row per model x task x length x depth.
-- Units:     length in ids; depth the share of the context that precedes the needle; accuracy a share of the rows, answer_nll nats per
--            token of their answers.
SELECT
    model,
    task,
    length::BIGINT AS length,
    depth,
    count(*) AS num_rows,
    avg(contains::INTEGER) AS accuracy,
    sum(answer_nll * answer_tokens) / nullif(sum(answer_tokens) FILTER (WHERE answer_nll IS NOT NULL), 0) AS answer_nll
FROM documents
WHERE depth IS NOT NULL
GROUP BY model, task, length, depth
ORDER BY task, model, length, depth
