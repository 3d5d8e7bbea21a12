"""Frames of an execution: appended, numbered, and what a stream's head remembers."""
