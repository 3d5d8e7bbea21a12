"""The rules, pure: no clock, no input or output, no randomness, no logging."""
