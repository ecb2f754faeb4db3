"""The auditor: finds positional faults in checkpoints, configs and live models."""

from whereness.auditor.sound import assert_sound as assert_sound
