"""Chat templates against transformers, and what a hostile one can do."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest

from inferx.errors import InvalidRequestError
from inferx.loader import Tokenizer, load_tokenizer, open_checkpoint
from inferx.loader.chat_template import ChatTemplate, normalise_messages

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": 'Weather <of> a "city" & more é 日本',
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string"}},
                "required": ["city"],
            },
        },
    }
]
CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "hi"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  two\n\nlines  "}],
    [
        {"role": "user", "content": "Weather in Kyoto?"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"type": "function", "function": {"name": "get_weather", "arguments": {"city": "京都"}}}
            ],
        },
        {"role": "tool", "content": '{"t": 21}'},
        {"role": "tool", "content": "sunny"},
        {"role": "assistant", "content": "21 degrees."},
        {"role": "user", "content": "Thanks <b>"},
    ],
]


@pytest.fixture(scope="module")
def qwen25(qwen25_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(qwen25_gguf))


@pytest.fixture(scope="module")
def smollm2(smollm2_gguf: Path) -> Tokenizer:
    return load_tokenizer(open_checkpoint(smollm2_gguf))


@pytest.mark.parametrize("generation_prompt", [True, False])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("model", ["qwen25", "smollm2"])
def test_rendering_equals_transformers(
    model: str, tools: Any, generation_prompt: bool, request: pytest.FixtureRequest
) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    tokenizer: Tokenizer = request.getfixturevalue(model)
    for messages in CONVERSATIONS:
        expected = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=tokenizer.chat_template.source,
            add_generation_prompt=generation_prompt,
        )[0][0]
        rendered = tokenizer.apply_chat_template(messages, generation_prompt, tools)
        assert rendered == expected
        assert tokenizer.encode_chat(messages, generation_prompt, tools) == tokenizer.encode(
            expected, add_special_tokens=False
        )


FEATURES = r"""
{%- set ns = namespace(found=false) %}
{% for m in messages %}
    {%- if m.role == 'skip' %}{% continue %}{% endif %}
    {%- if m.role == 'stop' %}{% break %}{% endif %}
{{ m.role | upper }}: {{ m.content | trim }} {{ loop.index }}
    {% generation %}{{ m.content }}{% endgeneration %}
    {%- set ns.found = true %}
{% endfor %}
{{ tools | tojson(indent=2) if tools else 'none' }} {{ {'b': 1, 'a': '<é&\'>'} | tojson }}
{{ ns.found }} {{ strftime_now('%Y') | length }} {{ messages | map(attribute='role') | join(',') }}
{{ dict(a=1).items() | list }} {{ range(3) | list }} {{ 'abc' * 2 }} {{ '%s-%d' % ('x', 3) }} {{ 2 ** 5 }}
"""


def test_features_of_published_templates_equal_transformers() -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = [{"role": r, "content": f" c{r} "} for r in ("user", "skip", "assistant", "stop", "user")]
    for tools in (None, TOOLS):
        expected = render_jinja_template([messages], tools=tools, chat_template=FEATURES)[0][0]
        rendered = ChatTemplate(FEATURES).render(messages, tools=tools, add_generation_prompt=False)
        assert rendered == expected


def test_variables_reach_the_template(smollm2: Tokenizer) -> None:
    source = "{{ bos_token }}|{{ eos_token }}|{{ enable_thinking }}|{{ missing is defined }}"
    text = smollm2.apply_chat_template(CONVERSATIONS[0], chat_template=source, enable_thinking=False)
    assert text == "<|im_start|>|<|im_end|>|False|False"
    for name in ("messages", "range"):
        with pytest.raises((InvalidRequestError, TypeError), match=name):
            smollm2.apply_chat_template(CONVERSATIONS[0], **{name: []})


def test_a_refusal_of_the_template_is_the_callers_error(smollm2: Tokenizer) -> None:
    source = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(InvalidRequestError, match="roles must alternate"):
        smollm2.apply_chat_template(CONVERSATIONS[0], chat_template=source)


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ 1 / 0 }}",
        "{{ messages.nope.nope }}",
        "{{ undefined_function() }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% include 'x' %}",
        "{{ messages | nofilter }}",
    ],
)
def test_broken_templates_are_the_callers_error(source: str, smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="chat template"):
        smollm2.apply_chat_template(CONVERSATIONS[0], chat_template=source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.__class__ }}{{ cycler.__init__.__globals__ }}",
        "{{ raise_exception.__globals__['json'] }}",
        "{{ messages.append({'role': 'x'}) }}",
        "{% set messages[0]['role'] = 'x' %}",
        "{{ range.__self__ }}",
        "{{ namespace.__init__.__globals__ }}",
    ],
)
def test_the_sandbox_holds(source: str, smollm2: Tokenizer) -> None:
    try:
        text = smollm2.apply_chat_template(CONVERSATIONS[0], chat_template=source)
    except InvalidRequestError:
        return
    assert not re.search(r"class|module|function|object at", text)


DOUBLING = "{% set ns = namespace(s='x' * 99) %}{% for i in range(40) %}...{% endfor %}"


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 9 }}",
        "{{ 10 ** 10 ** 10 }}",
        "{{ [0] * 999999999 }}",
        "{% for i in range(999999999) %}x{% endfor %}",
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{{ '%999999999d' % 1 }}",
        "{{ 'x'.ljust(999999999) }}",
        "{{ '{:>999999999}'.format(1) }}",
        "{{ 'x' | center(999999999) }}",
        "{{ lipsum(n=100000) }}",
        DOUBLING.replace("...", "{% set ns.s = ns.s + ns.s %}"),
        "{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}",
        "{{ ('x' * 9999999).replace('x', 'y' * 9999999) }}",
        "{{ ('x' * 9999999) | replace('x', 'y' * 9999999) }}",
        "{{ ('y' * 9999999).join(['a'] * 9999999) }}",
        "{{ 'x' | indent(999999999, first=true) }}",
        DOUBLING.replace("...", "{% set ns.s = ns.s ~ ns.s %}"),
        DOUBLING.replace("...", "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"),
        "{{ [('x' * 9999999)] * 9999999 | join }}",
        "{{ ([('x' * 9999999)] * 9999999) | join }}",
        "{{ {'a': 1} | tojson(indent=999999999) }}",
    ],
)
def test_small_templates_cannot_make_huge_values(source: str, smollm2: Tokenizer) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidRequestError, match="chat template"):
        smollm2.apply_chat_template(CONVERSATIONS[0], chat_template=source)
    assert time.monotonic() - started < 20


# ---- messages


def test_parts_are_joined_for_templates_that_want_text(smollm2: Tokenizer) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert not smollm2.chat_template.takes_parts()
    joined = smollm2.apply_chat_template([{"role": "user", "content": parts}])
    assert joined == smollm2.apply_chat_template([{"role": "user", "content": "one\ntwo"}])
    with pytest.raises(InvalidRequestError, match="only text parts are supported, got 'image_url'"):
        smollm2.apply_chat_template([{"role": "user", "content": [{"type": "image_url"}]}])


def test_parts_stay_parts_for_templates_that_read_them() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endfor %}"
    )
    assert template.takes_parts()
    with pytest.raises(InvalidRequestError, match="only text parts"):
        normalise_messages([{"role": "user", "content": [{"type": "image"}]}], takes_parts=True)


def test_normalised_messages() -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    odd = {"type": "function", "function": {"name": "f", "arguments": "not json"}}
    messages = [{"role": "assistant", "content": None, "tool_calls": [call, odd]}]
    (result,) = normalise_messages(messages, takes_parts=False)
    assert "content" not in result
    assert [c["function"]["arguments"] for c in result["tool_calls"]] == [{"a": 1}, "not json"]
    assert call["function"]["arguments"] == '{"a": 1}'  # the caller's objects stay as they were


@pytest.mark.parametrize(
    "messages",
    [
        None,
        [],
        "hi",
        [1],
        [{"content": "x"}],
        [{"role": 3, "content": "x"}],
        [{"role": "user", "content": object()}],
    ],
)
def test_malformed_messages_are_refused(messages: Any, smollm2: Tokenizer) -> None:
    with pytest.raises(InvalidRequestError, match="messages"):
        smollm2.encode_chat(messages)


def test_deep_nesting_is_refused(smollm2: Tokenizer) -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="nested deeper"):
        smollm2.encode_chat([{"role": "user", "content": deep}])


def test_a_model_without_a_template_says_so() -> None:
    tokenizer = Tokenizer(
        '{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {}, "merges": []}}'
    )
    assert not tokenizer.has_chat_template
    with pytest.raises(InvalidRequestError, match="no chat template"):
        tokenizer.encode_chat(CONVERSATIONS[0])
