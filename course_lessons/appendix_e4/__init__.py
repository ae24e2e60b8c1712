"""Appendix E4: the steps of pipeline stages, drawn."""
