-- Facts about the run that made the table. Grain: one row per fact; values are JSON.
SELECT key, value
FROM meta
ORDER BY key
