"""Checkpoints of logical tensors."""
