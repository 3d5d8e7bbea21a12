"""What callers do: one part of ``Engine`` per topic."""
