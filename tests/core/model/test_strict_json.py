"""JSON that repeats a key in an object is refused, at any depth and in any spelling."""

import json
import random
from typing import Any

import msgspec
import pytest

from callsheet.core.model.strict_json import DuplicateKeyError, decode_json, refuse_duplicate_keys

DUPLICATES = [
    '{"a":1,"a":1}', '{"a":1,"b":2,"a":3}', '[[{"x":{"y":1,"y":2}}]]', r'{"a":1,"\u0061":2}', '{"":1,"":2}',
    r'{"a":":","a":"\u003a"}', r'{"a":1,"b":"\u003A","a":2}', r'{"a\\u003a":1,"a\\u003a":1}', '{"a":{},"a":{}}',
    '{"é":1,"é":2}', '{"a" : 1 , "a" : 2}',
]  # fmt: skip
VALID = [
    "{}", "[]", "null", '"a:b:c"', '{"a":{"a":{"a":":"}}}', '[{"a":1},{"a":1}]', r'{"a":"\u003a:"}', r'{"\u003a":1}',
    r'{"a":"{\"b\":1,\"b\":2}"}', r'{"a\\u003a":1,"a:":1}', '{"a":"\\u00e9 \\ud83c\\udfac"}', '{"a":1e5,"A":1E5}',
]  # fmt: skip


@pytest.mark.parametrize("text", DUPLICATES)
def test_a_repeated_key_is_refused(text: str) -> None:
    with pytest.raises(DuplicateKeyError, match="is repeated in one object"):
        refuse_duplicate_keys(text.encode())


@pytest.mark.parametrize("text", VALID)
def test_json_without_a_repeated_key_is_accepted(text: str) -> None:
    assert decode_json(text, Any) == msgspec.json.decode(text)


def test_the_key_is_named_and_shortened() -> None:
    with pytest.raises(DuplicateKeyError, match=r"^The key 'prompt' is repeated in one object$"):
        decode_json('{"prompt":1,"prompt":2}', Any)
    long_key = "\u202e" + "k" * 10_000
    with pytest.raises(DuplicateKeyError) as refused:
        refuse_duplicate_keys(json.dumps([{long_key: 1}]).replace(": 1", f': 1, "{long_key}": 2').encode())
    assert len(str(refused.value)) < 150
    assert "\u202e" not in str(refused.value)


def test_the_count_of_colons_finds_what_a_look_at_every_key_finds() -> None:
    rng = random.Random(7)
    found = 0
    for _ in range(3_000):
        text = _random_json(rng, 3)
        has_duplicate = _has_duplicate(text)
        found += has_duplicate
        try:
            refuse_duplicate_keys(text.encode())
        except DuplicateKeyError:
            assert has_duplicate, text
        else:
            assert not has_duplicate, text
    assert 500 < found < 2_500


def _random_json(rng: random.Random, depth: int) -> str:
    texts = ('"a"', '"b"', '":"', r'"\u003a"', r'"\\u003a"', r'"\u0061"', r'"\":"')
    if depth == 0:
        return rng.choice((*texts, "1", "1.5e3", "null"))
    if rng.random() < 0.3:
        return "[" + ",".join(_random_json(rng, depth - 1) for _ in range(rng.randrange(3))) + "]"
    pairs = (f"{rng.choice(texts)}: {_random_json(rng, depth - 1)}" for _ in range(rng.randrange(4)))
    return "{" + ",".join(pairs) + "}"


def _has_duplicate(text: str) -> bool:
    found = []
    json.loads(text, object_pairs_hook=lambda pairs: found.append(len(dict(pairs)) != len(pairs)))
    return any(found)


def test_an_argument_that_is_not_utf_8_is_refused() -> None:
    with pytest.raises(msgspec.DecodeError, match="not UTF-8"):
        decode_json('{"a":"\udcff"}', Any)
