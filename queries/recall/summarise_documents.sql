-- How well each model recalls on each task.
-- Grain in:  `documents`, one row a model x prompt of a recall evaluation.
-- Grain out: one row a model x task.
-- Units:     accuracy the share of rows whose generation contains the value; answer_nll nats a token of all answers together,
--            answer_nats nats an answer; truncated and answer_cut rows whose prompt, whose answer's every occurrence, was cut away.
WITH recalled AS (
    SELECT model, task, doc_id, contains, answer_nll * answer_tokens AS nats, answer_tokens, truncated, answer_cut
    FROM documents
),

final AS (
    SELECT
        model,
        task,
        count(*) AS num_rows,
        count(DISTINCT doc_id) AS num_documents,
        count(*) FILTER (WHERE truncated) AS truncated,
        count(*) FILTER (WHERE answer_cut) AS answer_cut,
        avg(contains::INTEGER) AS accuracy,
        sum(nats) / nullif(sum(answer_tokens) FILTER (WHERE nats IS NOT NULL), 0) AS answer_nll,
        avg(nats) AS answer_nats
    FROM recalled
    GROUP BY model, task
)

SELECT model, task, num_rows, num_documents, truncated, answer_cut, accuracy, answer_nll, answer_nats
FROM final
ORDER BY task, model
