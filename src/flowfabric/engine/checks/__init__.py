"""Checks of arguments, topic by topic, before any rule sees them."""
