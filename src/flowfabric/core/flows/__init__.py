"""Flows: building and submitting them, resolving edges as members end, cancelling, counting, removing."""
