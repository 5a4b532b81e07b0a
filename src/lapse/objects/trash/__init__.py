"""The trash of objects: what goes there, how it gets there, and how it comes back."""
