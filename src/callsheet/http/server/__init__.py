"""The web framework: routing, requests, responses, errors. It does not depend on jobs or other resources."""
