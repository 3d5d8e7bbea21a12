"""Live streams: frames, events and changes, sent while they happen."""
