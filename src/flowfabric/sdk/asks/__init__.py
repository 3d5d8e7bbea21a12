"""Questions to people: asking, finding open ones, answering; also those that a budget asks."""
