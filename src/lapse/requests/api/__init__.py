"""The kinds of objects that requests are made of, ours and Kubernetes' own, and the conditions they report.

`kinds` and `upstream` are the types, `conditions` the outcomes. Everything that is demanded of a document stands once,
in `kinds` (the shape) and `rules` (what no shape can say); the validators of the embedded store and the CRDs for
Kubernetes are both made from that.
"""
