"""What a process tells about itself: figures, log lines, traces. Servers and workers share it."""
