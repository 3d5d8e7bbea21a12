"""One execution from its creation to its end: created, due, cancelled, completed, replayed, deleted."""
