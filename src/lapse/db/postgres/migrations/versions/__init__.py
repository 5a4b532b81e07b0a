"""The steps. Each module names its place in the order; what it does stands in the SQL file beside it."""
