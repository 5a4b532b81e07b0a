"""Composition roots: what each process of Lapse opens, wires and runs. Nothing else wires."""
