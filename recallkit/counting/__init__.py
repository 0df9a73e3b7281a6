"""Exact counts of training bigrams in a DuckDB table."""

from recallkit.counting.run import count, export_counts, import_counts
from recallkit.counting.table import open_counts, read_meta
from recallkit.options import CountingOptions

__all__ = ["CountingOptions", "count", "export_counts", "import_counts", "open_counts", "read_meta"]
