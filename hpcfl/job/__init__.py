"""A job: its keys checked and typed, and the classes that they name found."""
