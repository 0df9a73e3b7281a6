"""Results as a page that people look at: one HTML file that runs from disk and fetches nothing."""
