"""What falls due by itself: the loop, and what it runs, topic by topic."""
