"""Training: recipes and the loop that runs them."""
