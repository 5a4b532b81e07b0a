"""The benchmark: Lapse beside its peers, in one run, on one machine. ``make bench`` runs it and writes its page.

One module per question (`memory`, `expiry`, `file`, `writers`, `startup`), `contest` for what they share, `plans` for
how much is done, `claims` for what is promised, `page` and `chart` for what is written.
"""
