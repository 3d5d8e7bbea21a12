"""The commands, one module per word or group of words; ``application`` gathers them."""
