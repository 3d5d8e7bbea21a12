"""Namespaces: which things belong to which, and what limited callers may name."""
