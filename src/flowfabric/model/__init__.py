"""Identities, states, policies, handles, frames and errors. Imports nothing else of this project."""
