"""Words of lines for people."""


def counted(count: float, noun: str, form: str = "") -> str:
    """A number and its noun: "1 step", "2 steps".

    Args:
        count: how many, perhaps a mean.
        noun: in the singular, of a plural in "s".
        form: of the number, as in a format string.
    """
    return f"{count:{form}} {noun}{'s' * (count != 1)}"
