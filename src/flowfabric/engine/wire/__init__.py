"""The engine's operations on their way to another process: values, errors, and which may be called."""
