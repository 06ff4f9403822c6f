"""Training: recipes and the loop that runs them. The only package that imports Lightning."""
