"""Questions to people: asked, found while they are open, and those that a budget asks."""
