"""JSON Schemas: made from types, checked when they are stored, matched in bounded time."""
