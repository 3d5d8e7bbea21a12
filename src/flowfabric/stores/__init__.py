"""Where it is kept: rows, loaded under lock and written in bulk. A reader finds no rule here."""
