"""How a recorded statement reaches a runner."""
