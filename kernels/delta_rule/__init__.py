"""Linear attention that overwrites what its state has for a key."""
