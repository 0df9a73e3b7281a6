"""Long causal convolution of each channel with its own filter, and optional gates before and after
it."""
