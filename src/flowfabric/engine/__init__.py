"""Making it happen: commands gathered into batches, decided by the core, committed once, answered after the commit."""

from flowfabric.engine.engine import Engine

__all__ = ["Engine"]
