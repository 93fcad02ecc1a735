"""A pass over a table: the operations of a policy in canonical order; and the orphans of a whole bucket."""
