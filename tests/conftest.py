"""Settings of every test: one thread, fixed seeds, and run-time types if WHERENESS_TYPED=1."""

import os
import sys

import hypothesis
import pytest
import torch
from jaxtyping import install_import_hook

TYPED = os.environ.get("WHERENESS_TYPED", "")

if TYPED not in ("", "0", "1"):
    raise pytest.UsageError(f"WHERENESS_TYPED must be 0 or 1, got {TYPED!r}.")
if TYPED == "1":
    if "whereness" in sys.modules:
        raise pytest.UsageError("whereness was imported before its types could be checked.")
    # The tower: an int is a float too, as every static checker has it.
    install_import_hook(
        "whereness", "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))"
    )

# pytest-xdist runs one process a core: more threads in each only wait for one another. The
# variable is for the processes that tests start.
torch.set_num_threads(1)
os.environ["OMP_NUM_THREADS"] = "1"


class TorchSeed:
    """Lets Hypothesis seed torch for each example and put its state back."""

    seed = staticmethod(torch.manual_seed)
    getstate = staticmethod(torch.get_rng_state)
    setstate = staticmethod(torch.set_rng_state)


TORCH_SEED = TorchSeed()  # Hypothesis keeps a weak reference only
hypothesis.register_random(TORCH_SEED)

# deadline: the first call into torch is slow. `--hypothesis-profile=explore` looks further.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeatable")


@pytest.fixture(autouse=True)
def seeded():
    """Every test starts from the same random state, whatever ran before it."""
    torch.manual_seed(0)


def pytest_report_header() -> str:
    """State what the results depend on."""
    return f"torch {torch.__version__}, types checked at run time: {TYPED == '1'}"


def pytest_terminal_summary(terminalreporter) -> None:
    """Print what tests have measured: `record_property("measured", text)`."""
    reports = [each for kind in ("passed", "failed") for each in terminalreporter.getreports(kind)]
    measured = [
        text
        for report in reports
        for name, text in getattr(report, "user_properties", ())
        if name == "measured" and report.when == "call"
    ]
    if measured:
        terminalreporter.section("measured")
        terminalreporter.write_line("\n".join(measured))
