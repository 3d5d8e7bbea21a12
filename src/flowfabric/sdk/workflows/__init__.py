"""Durable functions: plain code whose calls are remembered, and whose waits hold no worker."""
