-- Adds a fact about the run that made the table. Grain: one row per fact; `$value` is JSON.
INSERT INTO meta
VALUES ($key, $value)
