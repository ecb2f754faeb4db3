"""Every planted fault that is not listed as missed is found by a check that names its kind.

Its unbroken host has none of that kind.
"""

from collections import Counter

import pytest

from auditor.faults.catalogue import FAULTS
from auditor.faults.table import added, already, audited, said
from whereness.auditor.findings import KINDS

BY_ID = pytest.mark.parametrize("fault", FAULTS.values(), ids=list(FAULTS))


def test_the_catalogue_is_large_and_covers_every_kind():
    kinds = Counter(fault.kind for fault in FAULTS.values())
    assert len(FAULTS) >= 80
    assert set(kinds) == set(KINDS)
    assert min(kinds.values()) >= 3
    assert sum(fault.blind for fault in FAULTS.values()) * 3 >= len(FAULTS)


def test_faults_are_planted_in_many_families():
    hosts = {fault.host.split()[0] for fault in FAULTS.values() if fault.where != "config"}
    assert len(hosts - {"own"}) >= 12


OF_THEIR_OWN: dict[str, set[str]] = {
    "llama": {"K06"},
    "qwen2": {"K06"},
    "llama with dynamic NTK": {"K05"},
    "bert": {"K09"},
    "gemma3_text": {"K02"},  # heads so small that the base is small for the advertised length
}
"""Hosts of transformers that have faults of a kind before anything is planted, and which."""


def test_few_are_missed_and_each_says_why():
    missed = [fault for fault in FAULTS.values() if fault.missed]
    assert len(FAULTS) - len(missed) >= 75
    assert all(len(fault.missed.split()) >= 8 for fault in missed)
    found = Counter(fault.kind for fault in FAULTS.values() if not fault.missed)
    assert min(found[kind] for kind in KINDS) >= 3


@pytest.mark.more
@pytest.mark.timeout(300)
@BY_ID
def test_a_planted_fault_is_found_by_a_check_that_names_its_kind(fault, tmp_path):
    """One that is listed as missed must be missed: a mended check changes the list."""
    new = added(fault, said(audited(fault.broken(tmp_path))))
    assert (fault.kind in {found.kind for found in new}) != bool(fault.missed), (fault.what, new)


@pytest.mark.more
@pytest.mark.timeout(300)
@BY_ID
def test_the_unbroken_host_has_none_of_that_kind(fault):
    if fault.kind not in OF_THEIR_OWN.get(fault.host, set()):
        assert fault.kind not in {found.kind for found in already(fault.where, fault.host)}
