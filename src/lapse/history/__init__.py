"""The history domain: records of what was done, and how long they stay; by age and by count, for any kind.

`retention` is the pure decision; `policy` is what people write about it, in fields named by `paths`; `configured` is
the policy of the history itself, from flags. `records` makes records and `recording` writes them. A pass over a
store (`passes`) has a `glance` first, then a `listing`, whose objects `reading` makes entries of; `survey` and
`ranking` are what one policy makes of these, `several` what all do, and `acting` ends what is due. `service` puts it
together, with `policies` as objects and `completions` as they happen.
"""
