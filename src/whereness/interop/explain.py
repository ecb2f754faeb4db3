"""What a config, or an encoding, makes each layer do, in words and numbers."""


def explain(config: object) -> str:
    """To come."""
    raise NotImplementedError
