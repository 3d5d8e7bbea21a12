"""The engine's operations over HTTP, so that an app and its workers need only a URL and a token."""
