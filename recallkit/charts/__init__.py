"""Pictures of results: altair charts, drawn for a page that has light and dark, and for a paper."""
