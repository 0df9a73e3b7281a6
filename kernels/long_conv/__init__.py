"""Long causal convolution of each channel with a filter of its own, gates before and after it included."""
