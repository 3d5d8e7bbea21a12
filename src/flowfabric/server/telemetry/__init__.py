"""Observing a server: log lines, metrics, samples for charts, errors to Sentry."""
