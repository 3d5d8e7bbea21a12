"""The view that one batch of commands is decided on, what is loaded ahead, and what follows its commit."""
