"""Lanes: their state, fair sharing between keys, and the registry of workers."""
