"""What callers look at: one part of ``Engine`` per topic."""
