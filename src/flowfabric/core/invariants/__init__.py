"""Checks of stored rows and events that must hold at any time; ``doctor`` and the tests run them."""
