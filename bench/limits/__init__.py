"""Limits: what the same rows cost when SQL is written by hand and no rule is checked. They are the yardsticks."""
