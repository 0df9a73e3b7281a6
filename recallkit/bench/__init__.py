"""Benchmarks of this machine: operations of `recallkit.kernels` against public implementations, and whole models."""
