"""The operations of ``Engine`` that only read, one part per topic."""
