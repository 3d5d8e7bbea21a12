"""Shared by stores that keep records by key: indexes, loading, answers, and the changes of a commit."""
