"""Results as a page: one HTML file that opens from disk and fetches nothing."""
