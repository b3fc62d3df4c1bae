"""What supervisor and worker both know; the supervisor imports nothing else of the sandbox."""
