"""Credentials of callers from outside."""
