"""Redaction of error texts: removes secrets, signed URLs, paths and stack traces before they are shown."""

import json
import re

_MESSAGE_FIELDS = ("exception_message", "error_message", "message", "error")
_MESSAGE_IN_TEXT = re.compile(r"[\"'](?:exception_message|error_message)[\"']\s*:\s*[\"']((?:[^\"'\\]|\\.)+)[\"']")
_REDACTIONS = (
    (re.compile(r"(?<![\w+.-])[a-z][a-z0-9+.-]*://\S+", re.IGNORECASE), "[url]"),
    (re.compile(r"\b(?:Bearer|Basic|Key|Token)\s+\S{8,}", re.IGNORECASE), "[secret]"),
    (
        re.compile(r"\b(?:whsec_|sk-|sk_|r8_|hf_|gh[pousr]_|github_pat_|xox[abp]-|AKIA|ASIA|AIza|eyJ)[\w.+/=-]{6,}"),
        "[secret]",
    ),
    (re.compile(r"\bcs[tw]?_[\w-]{20,}"), "[secret]"),  # keys and tokens of Callsheet
    (
        re.compile(
            r"\b(?:password|passwd|secret|token|signature|api[_-]?key|credential)s?\b[\"']?\s*[=:]\s*\S+", re.IGNORECASE
        ),
        "[secret]",
    ),
    (re.compile(r"(?<![\w.])(?:[A-Za-z]:\\|/)(?:[\w.@ -]+[/\\])+[\w.@-]*"), "[path]"),
    (re.compile(r"\b[A-Fa-f0-9]{40,}\b"), "[secret]"),
)
DEFAULT_MESSAGE = "Processing failed."


def redact_error(text: str, chars_max: int) -> str:
    """Return one line of an error text that a user may see, without secrets.

    It is the message of a JSON report, or the first line of other texts.
    """
    line = _extract_message(text.strip())[: 4 * chars_max]  # some patterns need quadratic time, so limit the length
    for pattern, replacement in _REDACTIONS:
        line = pattern.sub(replacement, line)
    line = "".join(c if c.isprintable() else " " for c in line).strip()
    return line[:chars_max] or DEFAULT_MESSAGE


def _extract_message(text: str) -> str:
    if text.startswith("{"):
        try:
            report = json.loads(text)
        except (ValueError, RecursionError):
            report = None
        if isinstance(report, dict):
            for field in _MESSAGE_FIELDS:
                if isinstance(report.get(field), str) and report[field].strip():
                    return _first_line(report[field])
    found = _MESSAGE_IN_TEXT.search(text)
    return _first_line(found.group(1) if found else text)


def _first_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    if lines and lines[0].startswith("Traceback (most recent call last)"):
        return lines[-1]
    return lines[0].strip() if lines else ""
