"""Short causal convolution of each channel, with bias, activation and an elementwise gate."""
