"""Tests of course_lib/memory: what is held, the peak, the budgets."""
