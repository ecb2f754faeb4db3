"""Running any model, and putting it back as it was."""
