"""What reads answer, topic by topic."""
