"""Retention policies: their documents, their meaning, and the rights that they and their authors need."""
