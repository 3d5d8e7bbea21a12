"""Frames of a run: its output, its log lines, and the mark where output starts over."""
