"""What one batch of commands sees, loads ahead, and sets going after its commit."""
