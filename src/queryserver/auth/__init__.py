"""Who is calling: login back ends, tokens, passwords."""
