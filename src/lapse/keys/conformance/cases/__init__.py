"""The cases of the conformance kit, one module per theme."""
