"""Flows: built, submitted, resolved as members end, cancelled, counted and removed."""
