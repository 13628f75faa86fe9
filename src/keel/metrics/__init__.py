"""Scores with confidence intervals, as the official scorers compute them."""
