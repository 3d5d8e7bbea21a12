"""Which table holds which record, topic by topic. Stores translate the column types."""
