"""Statistics of a fleet's records, by noised sums: questions, their cells, price and answers."""
