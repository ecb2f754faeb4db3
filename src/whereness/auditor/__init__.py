"""The auditor: finds positional faults in checkpoints, configs and live models."""
