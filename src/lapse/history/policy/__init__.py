"""Retention policies: their documents, what they mean, and who may write them."""
