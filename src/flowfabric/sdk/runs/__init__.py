"""Runs: starting, finding, following and waiting for them; schedules, debouncing and limits."""
