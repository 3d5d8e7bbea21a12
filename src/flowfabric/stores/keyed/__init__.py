"""What stores that keep records by key have in common: indexes, loading, answers and what a commit changes."""
