"""HTTP/1.1: connections, requests, answers, limits and errors."""
