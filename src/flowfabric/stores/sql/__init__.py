"""What every SQL store shares: tables, rows, and questions as SQL."""
