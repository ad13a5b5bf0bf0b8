"""Redaction of errors: users see one line without secrets, URLs and paths."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callsheet.core.policy.redaction import DEFAULT_MESSAGE, redact_error

TRACE = """Traceback (most recent call last):
  File "/srv/worker/run.py", line 3, in <module>
    resize()
ValueError: bad size"""

LINES = [
    ("", DEFAULT_MESSAGE),
    ("   \n\t ", DEFAULT_MESSAGE),
    ("out of memory", "out of memory"),
    ("out of memory\nat line 3\nat line 4", "out of memory"),
    ("\n\n  first words  \nmore", "first words"),
    (TRACE, "ValueError: bad size"),
    (json.dumps({"exception_message": "bad node"}), "bad node"),
    (json.dumps({"error_message": "bad size\nwith a trace"}), "bad size"),
    (json.dumps({"message": "m", "exception_message": "e"}), "e"),
    (json.dumps({"error": "plain"}), "plain"),
    (json.dumps({"exception_message": "", "error": "next"}), "next"),
    (json.dumps({"exception_message": TRACE}), "ValueError: bad size"),
    ("RuntimeError: {'exception_message': 'CUDA error', 'node': 7}", "CUDA error"),
    ('{"exception_message": "cut off", "trace": [', "cut off"),
    ("{" * 100_000, "{" * 2_000),
    ("bell\x07 and \x1b[31mred\x1b[0m", "bell  and  [31mred [0m"),
]

HIDDEN = [
    "GET https://bucket.s3.amazonaws.com/k?X-Amz-Signature=SECRETWORD failed",
    "see s3://bucket/SECRETWORD/key",
    "postgresql://user:SECRETWORD@db/prod refused",
    "401 for Authorization: Bearer SECRETWORD1234",
    "authorization: basic SECRETWORD1234",
    "Token SECRETWORD1234 rejected",
    "key sk-SECRETWORD1234 is invalid",
    "r8_SECRETWORD1234 is over its limit",
    "hf_SECRETWORD1234 may not read this model",
    "ghp_SECRETWORD1234",
    "whsec_SECRETWORD1234 does not match",
    "401 for csw_0123456789-SECRETWORD_abc",
    "the key cs_SECRETWORD0123456789abc is unknown",
    "cst_SECRETWORD0123456789abc has ended",
    "AKIASECRETWORD1234",
    "eyJSECRETWORD.eyJwYXlsb2Fk.c2lnbmF0dXJl is no longer valid",
    "password=SECRETWORD",
    "password: SECRETWORD",
    '"api_key": "SECRETWORD"',
    "api-key=SECRETWORD",
    "secret = SECRETWORD",
    "signature=SECRETWORD",
    "/files/out.png?signature=SECRETWORD",
    "No such file: /srv/app/SECRETWORD/model.ckpt",
    "cannot open ~/models/SECRETWORD/x",
    r"cannot open C:\Users\SECRETWORD\model.ckpt",
    "cannot open 'D:\\SECRETWORD\\x'",
]


@pytest.mark.parametrize(("text", "line"), LINES)
def test_an_error_is_reduced_to_one_line(text: str, line: str) -> None:
    """R251: the message of a JSON error, a message in the text, the first line, or a default message."""
    assert redact_error(text, 2_000) == line


@pytest.mark.parametrize("text", HIDDEN)
def test_secrets_urls_and_paths_are_removed(text: str) -> None:
    """R251."""
    line = redact_error(text, 2_000)
    assert "SECRETWORD" not in line
    assert "[" in line, "a placeholder replaces it"


@pytest.mark.parametrize("text", ["a" * 64, "deadbeef" * 5])
def test_a_long_hexadecimal_word_is_removed(text: str) -> None:
    assert redact_error(f"digest {text} differs", 2_000) == "digest [secret] differs"


@pytest.mark.parametrize(
    "text", ["CUDA out of memory: 3/4 blocks", "ratio 16/9 is not allowed", "node 12: size must be at most 4096 x 4096"]
)
def test_other_words_are_kept(text: str) -> None:
    assert redact_error(text, 2_000) == text


@given(st.text(), st.integers(1, 300))
def test_a_redacted_error_is_short_printable_and_never_empty(text: str, chars_max: int) -> None:
    line = redact_error(text, max(chars_max, len(DEFAULT_MESSAGE)))
    assert 0 < len(line) <= max(chars_max, len(DEFAULT_MESSAGE))
    assert line.isprintable()


@pytest.mark.parametrize("text", ["a." * 200_000, "/a" * 200_000, "a " * 200_000, "'error_message':" * 20_000])
def test_a_huge_error_is_cut_before_it_is_searched(text: str) -> None:
    """The patterns take quadratic time, so a long text would block the server for minutes."""
    assert 0 < len(redact_error(text, 2_000)) <= 2_000
