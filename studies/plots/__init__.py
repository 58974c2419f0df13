"""Pictures, each also as data. One module a kind; nothing here is imported before a plot is asked for.

Every kind has ``<kind>_rows(...)`` (numbers, plain rows) and ``draw_<kind>(rows, ...)`` (a :class:`.style.Plot`, which
writes the picture and the rows as CSV beside it).
"""
