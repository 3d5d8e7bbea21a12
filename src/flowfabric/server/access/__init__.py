"""Credentials and scopes, the audit of acts, and signed handles."""
