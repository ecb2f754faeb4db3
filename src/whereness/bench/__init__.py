"""`whereness bench`: how fast, against whom, and only what has been found correct first."""
