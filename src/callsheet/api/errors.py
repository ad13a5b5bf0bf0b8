"""Errors as the API sends them."""

from msgspec import Struct


class Error(Struct, frozen=True):
    """Why something ended badly."""

    code: str
    message: str
