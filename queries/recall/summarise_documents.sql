-- How well each model recalls on each task.
-- Grain in:  `documents`, one row per model x prompt of a recall evaluation.
-- Grain out: one row per model x task.
-- Units:     accuracy the share of rows whose generation contains the value; answer_nll nats per token of all answers together,
--            answer_nats nats per answer; accuracy_any counts other accepted answers, too (null where there are none).
-- Counts:    truncated rows whose prompt was truncated, answer_cut those whose answer was removed with it; absent rows whose value
--            is not in the prompt, multiline rows whose value contains a newline, empty rows with a blank generation.
WITH recalled AS (
    SELECT
        model,
        task,
        doc_id,
        contains,
        contains_any,
        answer_nll * answer_tokens AS nats,
        answer_tokens,
        truncated,
        answer_cut,
        occurrences,
        value,
        generation
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
        count(*) FILTER (WHERE occurrences = 0) AS absent,
        count(*) FILTER (WHERE contains(value, chr(10))) AS multiline,
        count(*) FILTER (WHERE trim(generation) = '') AS empty,
        avg(contains::INTEGER) AS accuracy,
        avg(contains_any::INTEGER) AS accuracy_any,
        sum(nats) / nullif(sum(answer_tokens) FILTER (WHERE nats IS NOT NULL), 0) AS answer_nll,
        avg(nats) AS answer_nats
    FROM recalled
    GROUP BY model, task
)

SELECT
    model, task, num_rows, num_documents, truncated, answer_cut, absent, multiline, empty, accuracy, accuracy_any, answer_nll, answer_nats
FROM final
ORDER BY task, model
