-- The sequences that contain predicted tokens of given documents.
-- Grain in:  `tokens` (sequence, document), one row per predicted token; $documents, a list of document numbers.
-- Grain out: one row per document and sequence.
WITH asked AS (
    SELECT sequence, document
    FROM tokens
    WHERE list_contains($documents, document)
),

final AS (
    SELECT DISTINCT document, sequence
    FROM asked
    ORDER BY document, sequence
)

SELECT document, sequence
FROM final
