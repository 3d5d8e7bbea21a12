"""Durable functions: plain code whose calls are remembered by name, and whose waits hold no worker."""
