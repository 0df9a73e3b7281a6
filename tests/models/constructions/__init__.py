"""Tests of the sequence mixers."""
