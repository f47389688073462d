"""Code of the user's: classes by their names, and the file in which a run keeps objects."""
