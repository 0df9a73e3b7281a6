-- The columns of the tables in a database. Grain: one row per column.
SELECT table_name, column_name, data_type, is_nullable
FROM duckdb_columns()
WHERE schema_name = 'main' AND NOT internal
