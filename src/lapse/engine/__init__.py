"""How things lapse, whatever they are: the coordinator and its loops, metrics and logs.

Knows no domain. A domain hands its work over as a `Loop`; the composition root (`lapse.app.up`) puts them together.
"""
