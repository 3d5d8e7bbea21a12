"""Room before an execution is claimed: budgets, quotas, reservations, and blocks by route or by hand."""
