"""Waiting for signals: suspending, signalling, resuming; waitpoints, their tokens and keys."""
