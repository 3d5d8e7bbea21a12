"""Everything in this process: dictionaries and sorted indexes. Fast, ordered, and gone with the process."""

from flowfabric.stores.memory.store import MemoryStore

__all__ = ["MemoryStore"]
