"""What a learner sees: JupyterLab in a real browser."""
