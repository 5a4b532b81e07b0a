"""Packed manifests: checkpoints, and the chunks that they are made of."""
