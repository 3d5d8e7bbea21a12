"""What may happen: pure rules. No clock, no input or output, no randomness, no logging."""
