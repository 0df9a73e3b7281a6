"""`train-mqar`: models trained from scratch on multi-query associative recall, and their accuracy against bytes of state."""
