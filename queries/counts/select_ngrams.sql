-- All longer n-grams. Grain: one row per distinct n-gram, sorted. Units: occurrences in the training text. Columns beyond the order are null.
SELECT first, second, third, fourth, fifth, count
FROM ngrams
ORDER BY first, second, third, fourth, fifth
