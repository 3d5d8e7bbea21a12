"""What operations take and answer, topic by topic."""
