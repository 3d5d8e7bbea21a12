"""What the decorators make of a function: its parameters, its dependencies, how values travel."""
