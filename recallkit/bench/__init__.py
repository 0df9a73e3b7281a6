"""`bench`: how fast this machine scores, reads a prompt and generates with whole models."""
