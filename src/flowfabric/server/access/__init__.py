"""Who may do what, who did what, and handles that nobody can make up."""
