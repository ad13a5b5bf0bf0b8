"""A count with its noun in the singular or plural, for messages."""


def pluralize(number: float, noun: str, *, verb: str = "") -> str:
    """Return "1 task" or "3 tasks"; with a verb, "1 task waits" or "3 tasks wait"."""
    singular = number == 1
    digits = str(int(number)) if number % 1 == 0 else f"{number:g}"
    words = [digits, noun if singular else f"{noun}s"]
    if verb:
        words.append(verb if singular else _PLURAL.get(verb, verb[:-1]))
    return " ".join(words)


_PLURAL = {"is": "are", "has": "have", "was": "were"}
