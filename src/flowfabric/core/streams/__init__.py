"""Frames of an execution: appending, numbering, and the head of a stream."""
