"""The metadata of GGUF files, and what llama.cpp makes of it."""
