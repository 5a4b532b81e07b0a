"""Where workspaces really are: the port of all runtimes, and the one that runs them as processes of this machine."""
