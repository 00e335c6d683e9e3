# ruff: noqa: E501
"""Where each acceptance case is a test.  The cases come from public bug reports; each stands for its whole kind.

Here it is only checked that every test named is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

HERE = Path(__file__).parent

# fmt: off
CASES = {
    "A01 stop strings over several tokens": "server/test_case_api.py::test_a01_over_several_tokens",
    "A03 characters of several tokens": "server/test_real_api.py::test_characters_split_over_tokens",
    "A05 usage in streams": "server/test_case_api.py::test_a05",
    "A07 max_tokens 0, null, wrong": "server/test_case_api.py::test_a07_scoring",
    "A09 prompts around the limit": "server/test_real_limits.py::test_prompts_around_the_limit",
    "A11 shapes of log-probabilities": "server/test_real_chat.py::test_log_probabilities",
    "A13 malformed bodies": "server/test_errors.py::test_malformed_bodies",
    "A13 fields that SDKs add": "server/test_case_api.py::test_a13_fields_that_sdks_add",
    "A15 streamed tool calls": "server/test_real_chat.py::test_named_function",
    "A15 cut in the middle": "server/test_chat_deltas.py::test_deltas_join_to_the_whole_answer",
    "A17 clients that leave": "server/test_real_api.py::test_clients_that_leave",
    "A19x stop inside a token": "server/test_case_api.py::test_a19x_inside_one_token",
    "A21x alternatives of equal text": "server/test_real_chat.py::test_log_probabilities_of_split_characters",
    "A23x leading spaces": "loader/test_tokenizer.py::test_white_space_survives_token_by_token",
    "B01 larger than the pool": "server/test_real_limits.py::test_what_never_fits_is_refused_and_blocks_nobody",
    "B03 prompt log-probabilities and the cache": "server/test_case_api.py::test_b03",
    "B05 cache hits change nothing": "engine/test_same_answer.py::test_random_mixes",
    "B07 a long prompt beside a stream": "engine/test_scheduler_policy.py::test_a_short_prompt_starts_while_a_long_one_is_under_way",
    "B09x namespaces of the cache": "engine/test_kv_manager.py::test_salts_and_models_do_not_meet",
    "B11x block sizes under pressure": "engine/test_scheduler_policy.py::test_block_sizes",
    "C01 tiny temperature": "server/test_case_api.py::test_c01",
    "C03 degenerate rows": "ops/test_sampling.py::test_degenerate_rows_fail_alone",
    "C05 penalties": "server/test_case_sampling.py::test_presence_is_a_bias_of_what_was_generated",
    "C07 bad words": "server/test_case_sampling.py::test_the_word_does_not_come_in_either_form",
    "C09 ids outside the vocabulary": "server/test_case_sampling.py::test_outside",
    "C11x contradicting options": "engine/test_structured.py::test_contradictions_end_in_an_error",
    "D02 damaged shards": "loader/test_hf.py::test_a_cut_shard_is_named",
    "D04 reordered rows of Q and K": "loader/test_gguf_checkpoint.py::test_llama_rows_come_back_with_the_right_head_counts",
    "D06 YaRN's factor": "engine/test_rope_contexts.py::test_yarn_limit_is_not_multiplied_again",
    "D08 biases": "models/test_families.py::test_matches_transformers",
    "D10 end tokens": "server/test_case_sampling.py::test_a_forced_end_token",
    "D12x dynamic NTK": "engine/test_rope_contexts.py::test_dynamic_scaling_before_and_beyond_the_trained_length",
    "D14x head_dim": "loader/test_hf_config.py::test_head_dim",
    "D16x activations beyond float16": "models/test_weights.py::test_activations_beyond_float16",
    "E01 offsets of 64 bits": "ops/test_paged_attention.py::test_offsets_beyond_32_bits",
    "E03 strides": "ops/test_paged_attention.py::test_strided_query_and_output",
    "E05 rows without keys": "ops/test_paged_attention.py::test_rows_without_keys",
    "E07 experts without tokens": "ops/test_experts.py::test_values",
    "E09x odd widths": "kernels/test_norm.py::test_rms_norm",
    "E11x routing weights": "ops/test_routing.py::test_published_numbers",
    "F02 hostile grammars": "engine/test_structured_validator.py::test_hostile_grammars_are_refused",
    "F04 floods": "server/test_real_security.py::test_floods",
    "F06 names are no paths": "server/test_real_security.py::test_names_never_reach_the_file_system",
    "F08x biases": "server/test_case_api.py::test_values_out_of_range",
    "F10x long unbroken texts": "server/test_real_api.py::test_long_unbroken_texts_stall_nobody",
    "F12x marker text": "server/test_chat_prompts.py::test_marker_text_stays_text_wherever_it_stands",
}
# fmt: on


@pytest.mark.parametrize("case", CASES)
def test_is_there(case: str) -> None:
    path, name = CASES[case].split("::")
    assert re.search(rf"^ *(async )?def {name}\(", (HERE / path).read_text(), re.MULTILINE)
