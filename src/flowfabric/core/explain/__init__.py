"""Why something waits, and what an act would do. Asks the rules themselves and changes nothing."""
