"""The timer loop and what it runs when it falls due, topic by topic."""
