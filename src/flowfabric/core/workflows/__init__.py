"""Durable functions: remembered steps, parents to be woken, children left behind."""
