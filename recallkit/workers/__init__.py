"""Who does the scoring: this process, several processes, or the machines of a Ray cluster."""
