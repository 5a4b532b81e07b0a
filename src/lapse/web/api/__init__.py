"""The routes of the HTTP API, one module per noun, and how errors and conditions look on them."""
