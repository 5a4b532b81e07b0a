"""The journal: the port, its implementations, and which changes of a verdict are written."""
