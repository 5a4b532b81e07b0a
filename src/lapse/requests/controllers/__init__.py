"""The controllers of requests: captures, restores and what they make."""
