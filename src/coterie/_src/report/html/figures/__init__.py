"""The figures of a page; each comes with a text that says what it shows."""
