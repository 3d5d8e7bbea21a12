"""Leases: claiming, granting by name, fencing, holding, taking over."""
