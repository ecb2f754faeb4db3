"""Every planted fault is found by a check that names its kind; its unbroken host has none of it."""

from collections import Counter

import pytest

from auditor.faults.catalogue import FAULTS
from auditor.faults.table import added, already, audited
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
}
"""Hosts of transformers that have faults of a kind before anything is planted, and which."""


@pytest.mark.more
@pytest.mark.timeout(300)
@BY_ID
def test_a_planted_fault_is_found_by_a_check_that_names_its_kind(fault, tmp_path):
    new = added(fault, audited(fault.broken(tmp_path)))
    said = [(found.check, found.kind, found.measured) for found in new]
    assert fault.kind in {found.kind for found in new}, (fault.what, said)


@pytest.mark.more
@pytest.mark.timeout(300)
@BY_ID
def test_the_unbroken_host_has_none_of_that_kind(fault):
    if fault.kind not in OF_THEIR_OWN.get(fault.host, set()):
        assert fault.kind not in {kind for _, kind, _ in already(fault.where, fault.host)}
