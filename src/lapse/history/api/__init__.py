"""The kinds of the history domain: records of experiments, and retention policies."""
