"""The pictures of appendix E4: the steps of pipeline stages over time."""
