"""Arguments and results of operations, topic by topic."""
