"""Security headers of responses, in one place: every response, HTML pages, files that users uploaded."""

Header = tuple[bytes, bytes]

SECURITY_HEADERS: tuple[Header, ...] = (
    (b"x-content-type-options", b"nosniff"),
    (b"cache-control", b"no-store"),
    (b"referrer-policy", b"no-referrer"),
)
"""Sent with every response."""
PAGE_SECURITY_HEADERS = (
    (
        "content-security-policy",
        (
            "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; connect-src 'self'; "
            "form-action 'none'; base-uri 'none'; frame-ancestors 'none'"
        ),
    ),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=(), payment=()"),
)
"""Sent with every HTML page of this server: it loads from this origin only, and no site may embed it in a frame."""
FILE_SECURITY_HEADERS = (("content-security-policy", "sandbox; default-src 'none'"),)
"""Sent with files that users uploaded: a browser shows or saves them, but never runs their scripts."""
