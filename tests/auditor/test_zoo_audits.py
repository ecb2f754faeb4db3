"""No false alarms, and not by silence: every architecture of the zoo audits without an error.

What was really compared with an expectation is counted: classification, spectrum or bias, width
and cache parity.
"""

from pathlib import Path

import pytest

from auditor import zoo
from auditor.faults.table import audited

pytestmark = [pytest.mark.more, pytest.mark.timeout(300)]

FINDINGS = Path(__file__).parents[2] / "docs" / "findings"

TRUE_FAULTS: dict[str, tuple[set[str], str]] = {
    "bamba": ({"K08"}, "transformers-bamba-chunks"),
    "falcon_alibi": ({"K06"}, "transformers-falcon-alibi"),
    "jamba": ({"K08"}, "transformers-jamba-chunks"),
    "led": ({"K09"}, "transformers-led-step-mask"),
    "m2m_100": ({"K09"}, "transformers-m2m100-left-pads"),
    "wav2vec2-bert_rotary": ({"K07"}, "transformers-conformer-inference"),
    "wav2vec2-conformer_rotary": ({"K07"}, "transformers-conformer-inference"),
}
"""Kinds of errors that are faults of an architecture's code, and the page in docs/findings."""

WANTED = ({"classification"}, {"spectrum", "bias"}, {"width"}, {"cache"})
"""Groups of things; something of each must have been compared."""

COMPLETE = """
llama mistral mixtral qwen2 qwen3 qwen2_moe qwen3_moe gemma gemma2 gemma3_text gptj gpt_neox
gpt_neox_japanese falcon falcon_new bamba lara_mini phi phi3 phimoe persimmon stablelm
starcoder2 codegen cohere cohere2 olmo olmo2 olmo3 olmoe glm glm4 glm4_moe granite granitemoe
granitemoeshared minicpm3 exaone exaone4 ernie4_5 ernie4_5_moe gpt_oss helium jetmoe arcee
apertus seed_oss doge bitnet ministral3 diffllama vaultgemma cwm flex_olmo nanochat minimax_m2
modernbert-decoder solar_open afmoe internlm3 hyperclovax granite_swa iquestcoder kolibri1
sarvam_moe lfm2 smollm3 llama4_text laguna mellum deepseek_v2 deepseek_v3 mistral4 youtu
longcat_flash dots1 nemotron dbrx hunyuan_v1_dense hunyuan_v1_moe ministral qwen2_vl_text
qwen2_5_vl_text glm4v_text t5gemma gemma4_text qwen3_next qwen3_5_text qwen3_vl_text
"""
"""Architectures on which something of each group is compared; others have it in part."""


# One test an architecture, and each audits once: so that workers share them.
@pytest.mark.parametrize("name", zoo.names())
def test_an_architecture_audits_without_an_error(name):
    report = audited(zoo.with_inputs(name, zoo.build(name)[0]))
    errors = report.of("error")
    known, _ = TRUE_FAULTS.get(name, (set(), ""))
    assert {found.kind for found in errors} == known, errors
    compared = {said.what for said in report.compared}
    if name in COMPLETE.split():
        assert all(group & compared for group in WANTED), compared


@pytest.mark.parametrize("name", sorted(TRUE_FAULTS))
def test_a_fault_of_an_architecture_has_its_page(name):
    assert (FINDINGS / f"{TRUE_FAULTS[name][1]}.md").is_file()


def test_on_seventy_architectures_everything_is_really_compared():
    assert set(COMPLETE.split()) <= set(zoo.names())
    assert len(set(COMPLETE.split())) >= 70
