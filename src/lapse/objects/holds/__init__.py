"""Holds on objects: how they are written, passed on, found and removed when they have ended."""
