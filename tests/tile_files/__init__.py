"""File tests: their cases and kinds."""
