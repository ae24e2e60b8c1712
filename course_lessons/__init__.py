"""Packages for single lessons, with their checks, pages, harness and pictures."""
