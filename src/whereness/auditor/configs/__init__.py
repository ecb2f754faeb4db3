"""What a config tells by itself."""
