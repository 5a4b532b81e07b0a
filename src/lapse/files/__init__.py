"""Directories as a whole: captured, restored, removed; shared by the domains that keep data in directories.

It knows nothing of requests or workspaces: paths come in, paths and checksums go out.
"""
