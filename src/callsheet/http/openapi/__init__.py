"""The API description: the OpenAPI document, the HTML and Markdown reference, and their texts."""
