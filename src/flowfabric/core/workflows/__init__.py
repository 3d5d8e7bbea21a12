"""Durable functions: the steps they remember, the parents they tell, the children they leave behind."""
