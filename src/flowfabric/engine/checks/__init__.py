"""What callers pass, checked before a rule sees it: topic by topic."""
