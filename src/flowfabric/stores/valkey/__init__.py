"""Valkey: everything in the memory of one server. Functions that run there whole, a log of them on its disk."""
