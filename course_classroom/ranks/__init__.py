"""The ranks under a notebook: their processes, their cells, and explanations of hangs."""
