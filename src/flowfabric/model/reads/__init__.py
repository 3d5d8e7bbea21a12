"""Results of reads, topic by topic."""
