"""Jobs run by one process, by several processes, or by a Ray cluster."""
