"""Jobs done by one process, several, or a Ray cluster."""
