"""Runs: started, found, followed and waited for; and what starts and bounds them."""
