"""Loops over tokens, compiled."""
