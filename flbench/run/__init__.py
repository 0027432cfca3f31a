"""One run: from a specification to a result."""
