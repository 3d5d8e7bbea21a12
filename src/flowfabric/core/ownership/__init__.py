"""Whose things are whose, and what callers who are limited to namespaces may name."""
