"""A learner's progress: outcomes of checks, their log, and the points of each lesson."""
