"""Training: recipes and the engine that follows them. The only room that knows Lightning."""
