"""A table under fire: writers, two maintainers, crashes and bad answers, beside a model of what it must hold."""
