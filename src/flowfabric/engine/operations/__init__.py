"""The operations of ``Engine`` that change something, one part per topic."""
