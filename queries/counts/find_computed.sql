-- The first view or macro of a database file: reading it would run code stored in the file instead of reading a table.
-- Grain: one row, or none if there are only tables.
WITH computed AS (
    SELECT 'view' AS kind, view_name AS name
    FROM duckdb_views()
    WHERE NOT internal

    UNION ALL

    SELECT 'macro' AS kind, function_name AS name
    FROM duckdb_functions()
    WHERE NOT internal
)

SELECT kind, name
FROM computed
ORDER BY kind, name
LIMIT 1
