"""Directories as a whole, and what processes ask of files: archives, ownership, limits of open files, work in threads.

It knows nothing of requests or workspaces: paths come in, paths and checksums go out.
"""
