"""What is shown: console, tables, exports, charts."""
