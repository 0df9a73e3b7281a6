-- All tokens with their counts. Grain: one row per distinct token, sorted. Units: occurrences in the training text.
SELECT token, count
FROM unigrams
ORDER BY token
