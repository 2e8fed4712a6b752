"""Studies: many runs, one question. What only reads collected tables imports no torch."""
