"""Workspaces: programs that are put to rest when nobody is there, archived later, and woken when somebody comes.

`model` says what a workspace is, `store` where it is kept.
"""
