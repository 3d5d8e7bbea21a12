"""Valkey: all records in one server's memory, changed by functions that run there, logged to its disk."""
