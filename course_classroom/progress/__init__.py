"""How far a learner has come: outcomes of checks, their log, the points of each lesson."""
