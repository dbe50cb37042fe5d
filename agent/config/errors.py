"""What can be wrong with a value."""


class BadValueError(ValueError):
    """A value that its kind cannot read; the text says what was expected."""
