"""Workspaces: programs that are put to rest when nobody is there, archived later, and woken when somebody comes.

`model` says what a workspace is, `store` where it is kept. `activity` says who is there, `access` brings the times of
accesses to the store, and `eligibility` decides, from a row and a signal, what may lapse.
"""
