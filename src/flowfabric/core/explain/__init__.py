"""Why something waits, and what an act would do: the rules themselves are asked, nothing is changed."""
