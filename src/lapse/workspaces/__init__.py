"""Workspaces: programs that are stopped when nobody uses them, archived later, and started again when opened.

`model` says what a workspace is, `store` where it is kept. `activity` says who is there, `access` brings the times of
accesses to the store, and `eligibility` decides, from a row and a signal, what may lapse.
"""
