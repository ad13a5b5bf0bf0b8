"""Numbers with their nouns, as people write them."""


def counted(number: float, noun: str, *, verb: str = "") -> str:
    """Return a number of something: 1 task, 3 tasks, 0.5 seconds; with a verb, 1 task waits, 3 tasks wait."""
    singular = number == 1
    digits = str(int(number)) if number % 1 == 0 else f"{number:g}"
    words = [digits, noun if singular else f"{noun}s"]
    if verb:
        words.append(verb if singular else _PLURAL.get(verb, verb[:-1]))
    return " ".join(words)


_PLURAL = {"is": "are", "has": "have", "was": "were"}
