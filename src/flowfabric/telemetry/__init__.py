"""A process about itself: metrics, log lines, traces. Servers and workers share it."""
