"""`train`: models trained from scratch, on text or on synthetic tasks, with one loop."""
