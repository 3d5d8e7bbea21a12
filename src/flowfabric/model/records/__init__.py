"""Stored records: one small struct per row."""
