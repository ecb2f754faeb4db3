"""Reports for people: a terminal, a page."""
