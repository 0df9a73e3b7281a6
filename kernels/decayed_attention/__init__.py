"""Attention whose heads forget: RetNet's retention and Mamba-2's state space duality."""
