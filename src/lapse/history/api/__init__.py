"""The kinds of the history domain: records of experiments, and policies that say how long things stay."""
