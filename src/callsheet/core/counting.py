"""Numbers with their nouns, as people write them."""


def counted(number: float, noun: str, *, verb: str = "") -> str:
    """Return a number of something: 1 task, 3 tasks, 0.5 seconds; with a verb, 1 task waits, 3 tasks wait."""
    one = number == 1
    said = str(int(number)) if number % 1 == 0 else f"{number:g}"
    return f"{said} {noun if one else f'{noun}s'}{verb and f' {verb if one else _PLURAL.get(verb, verb[:-1])}'}"


_PLURAL = {"is": "are", "has": "have", "was": "were"}
