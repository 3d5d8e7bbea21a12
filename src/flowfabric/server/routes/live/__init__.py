"""What goes on while it is read: streams of frames, of events and of changes."""
