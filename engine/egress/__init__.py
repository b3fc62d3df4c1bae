"""What leaves the supervisor for a script."""
