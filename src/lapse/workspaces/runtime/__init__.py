"""Runtimes of workspaces: the port, and the one that runs them as processes of this machine."""
