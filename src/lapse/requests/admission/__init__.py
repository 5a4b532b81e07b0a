"""Admission of requests: whose rights are asked for before a request is stored."""
