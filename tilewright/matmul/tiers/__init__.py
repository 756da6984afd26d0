"""Ways to compute products, and the table that chooses among them."""
