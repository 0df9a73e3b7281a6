"""Loops over tokens compiled by numba: counting, labelling, lookup, the control models' scores."""
