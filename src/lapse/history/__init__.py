"""The history domain: records of what was done, and how long they stay; by age and by count, for any kind.

`retention` is the pure decision, `policy` what people write about it, `paths` how they name fields.
"""
