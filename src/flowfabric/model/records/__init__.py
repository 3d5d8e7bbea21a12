"""What is stored: one small struct per row."""
