"""Commands for maintainers of this project; `make` calls them."""
