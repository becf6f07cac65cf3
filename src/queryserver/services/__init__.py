"""What the product does: plain classes, dependencies by constructor."""
