"""Retention: which records and objects go, found in passes over a store."""
