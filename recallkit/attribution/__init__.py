"""Arithmetic of attributing a gap: aligned reading, cells, buckets, shares, bootstrap intervals."""
