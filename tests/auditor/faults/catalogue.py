"""All planted faults: FAULTS, a dict by id."""

from auditor.faults import (  # noqa: F401  (each file adds its faults)
    biases,
    decoding,
    files,
    memory,
    packs,
    places,
    running,
    spectrum,
)
from auditor.faults.planting import FAULTS as PLANTED
from auditor.faults.planting import Fault

FAULTS: dict[str, Fault] = dict(sorted(PLANTED.items()))
