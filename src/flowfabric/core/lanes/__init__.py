"""Lanes: whether they hand work out, how keys share them, and the workers that serve them."""
