"""Notebook tools: magics, sliders, handling of missing packages, and the release of notebooks."""
