"""RWKV-4's sum of values weighted by exp(key) and by age, with one state per channel."""
