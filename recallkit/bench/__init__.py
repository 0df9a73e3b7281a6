"""How fast this machine computes: operations of `recallkit.kernels` beside public ones, and whole models."""
