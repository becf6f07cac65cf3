"""Values and rules, standard library only."""
