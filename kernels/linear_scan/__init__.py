"""A linear recurrence of each channel by itself, with a decay for each token."""
