"""Request bodies: JSON, forms and multipart, each within limits."""
