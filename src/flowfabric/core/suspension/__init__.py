"""Waiting for signals: suspended, signalled, resumed; waitpoints, their tokens and their keys."""
