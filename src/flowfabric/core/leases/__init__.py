"""Leases: claimed, granted by name, fenced, held and taken over."""
