"""Supporting code for lesson cells, with a file for each lesson: data, loops and clocks.

A cell keeps the taught code and its assert; code that runs, repeats or times a step is here. From
lesson 03 on.
"""
