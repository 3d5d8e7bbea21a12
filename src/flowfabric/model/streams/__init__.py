"""Frames of a run: what it emits, its log lines, and the mark where output starts over."""
