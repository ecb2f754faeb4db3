"""What weights tell by themselves."""
