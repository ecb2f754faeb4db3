"""Configs of models: what position each layer has, read and told."""
