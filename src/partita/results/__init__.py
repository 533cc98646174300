"""What comes out: the posterior, its history, and metrics."""
