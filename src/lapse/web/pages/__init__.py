"""The pages that a browser shows."""
