"""What a server tells about itself: log lines, figures, samples for charts, errors to Sentry."""
