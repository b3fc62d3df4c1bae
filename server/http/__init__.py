"""HTTP requests up to their handler: guard, authentication, target, body, route."""
