"""What must have room before an execution is claimed: budgets, quotas, reservations, blocks."""
