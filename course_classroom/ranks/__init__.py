"""The ranks under a notebook: their processes, cells on them, waits that explain themselves."""
