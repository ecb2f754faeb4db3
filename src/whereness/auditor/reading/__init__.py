"""What attention layers of a live model do with positions: seen by capture, read off by probing."""
