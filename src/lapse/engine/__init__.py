"""The engine: the domain interface, sweep, executor, journal, safety gate, and what runs a process.

Knows no domain. A domain hands its work over as a `Loop`; the composition root (`lapse.app.up`) puts them together.
"""
