"""Shared by the SQL stores: tables, rows, and questions as SQL."""
