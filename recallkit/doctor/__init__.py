"""Checks whether recallkit can work here: installed packages, the machine, and its surroundings."""
