"""The commands, one module per word that is typed or group of them; ``application`` gathers them."""
