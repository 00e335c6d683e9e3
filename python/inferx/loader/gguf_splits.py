"""How text is split before byte-level BPE, by the name that GGUF files give the rule.

A file only names its rule (``tokenizer.ggml.pre``; the names are llama.cpp's, src/llama-vocab.cpp).  What a
name stands for is the ``normalizer`` and ``pre_tokenizer`` of the tokenizer.json published with the models
that use it, and is written here as ``tokenizers`` reads it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = rf"{_CONTRACTIONS}| ?\p{{L}}+| ?\p{{N}}+| ?[^\s\p{{L}}\p{{N}}]+|\s+(?!\S)|\s+"
_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"(?i:{_CONTRACTIONS})|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+"
_QWEN2 = rf"{_WORDS}|\p{{N}}|{_TAIL}"
_LLAMA3 = rf"{_WORDS}|\p{{N}}{{1,3}}|{_TAIL}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_SLASH_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*|\p{{N}}|{_SLASH_TAIL}"
)
_GPT4O = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+(?i:{_CONTRACTIONS})?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*(?i:{_CONTRACTIONS})?|\p{{N}}{{1,3}}|{_SLASH_TAIL}"
)

# DeepSeek LLM and V2 list the letters that have a case, as the scripts that they had in mind know them.
_CASED = (
    "".join(
        (
            r"A-Za-z\u00B5\u00C0-\u00D6\u00D8-\u00F6\u00F8-\u01BA\u01BC-\u01BF\u01C4-\u0293\u0295-\u02AF",
            r"\u0370-\u0373\u0376\u0377\u037B-\u037D\u037F\u0386\u0388-\u038A\u038C\u038E-\u03A1\u03A3-\u03F5",
            r"\u03F7-\u0481\u048A-\u052F\u0531-\u0556\u10A0-\u10C5\u13A0-\u13F5\u13F8-\u13FD\u1C90-\u1CBA",
            r"\u1CBD-\u1CBF\u1D00-\u1D2B\u1D6B-\u1D77\u1D79-\u1D9A\u1E00-\u1F15\u1F18-\u1F1D\u1F20-\u1F45",
            r"\u1F48-\u1F4D\u1F50-\u1F57\u1F59\u1F5B\u1F5D\u1F5F-\u1F7D\u1F80-\u1FB4\u1FB6-\u1FBC\u1FBE",
            r"\u1FC2-\u1FC4\u1FC6-\u1FCC\u1FD0-\u1FD3\u1FD6-\u1FDB\u1FE0-\u1FEC\u1FF2-\u1FF4\u1FF6-\u1FFC",
            r"\u2102\u2107\u210A-\u2113\u2115\u2119-\u211D\u2124\u2126\u2128\u212A-\u212D\u212F-\u2134\u2139",
            r"\u213C-\u213F\u2145-\u2149\u214E\u2183\u2184\u2C00-\u2C7B\u2C7E-\u2CE4\u2CEB-\u2CEE\u2CF2\u2CF3",
            r"\uA640-\uA66D\uA680-\uA69B\uA722-\uA76F\uA771-\uA787\uA78B-\uA78E\uAB70-\uABBF\uFB00-\uFB06",
            r"\uFB13-\uFB17\uFF21-\uFF3A\uFF41-\uFF5A\U00010400-\U0001044F\U000104B0-\U000104D3",
            r"\U000104D8-\U000104FB\U00010C80-\U00010CB2\U00010CC0-\U00010CF2\U000118A0-\U000118DF",
            r"\U0001E900-\U0001E943",
        )
    )
    .encode("ascii")
    .decode("unicode_escape")
)
_LINE_ENDS = r"[\r\n]"
_EAST_ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
_DIGITS = "digits"  # each by itself
_DEEPSEEK_LLM = (
    _LINE_ENDS,
    rf"\s?[{_CASED}]+",
    "\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
    r"\s+$",
    _EAST_ASIAN,
    _DIGITS,
)
_DEEPSEEK_CODER = (_LINE_ENDS, r"\s?\p{L}+", r"\s?\p{P}+", _EAST_ASIAN, _DIGITS)
_DEEPSEEK_V3 = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)


@dataclass(frozen=True)
class SplitRule:
    """patterns: each splits the pieces that those before it left, into its matches and what is between them.

    nfc: the text is composed first.  whole_words: a piece that is in the vocabulary is one token, whatever
    the merges say.  bos: a text starts with BOS unless the file says otherwise.
    """

    patterns: tuple[str, ...]
    nfc: bool = False
    whole_words: bool = False
    bos: bool = False

    def pre_tokenizers(self, prefix_space: bool) -> list[dict[str, Any]]:
        byte_level = {
            "type": "ByteLevel",
            "add_prefix_space": prefix_space,
            "trim_offsets": True,
            "use_regex": False,
        }
        return [*map(_split, self.patterns), byte_level]


def _split(pattern: str) -> dict[str, Any]:
    if pattern == _DIGITS:
        return {"type": "Digits", "individual_digits": True}
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}


_GPT2_RULE = SplitRule((_GPT2,))
_DIGITS_RULE = SplitRule((_DIGITS, _GPT2))
_QWEN2_RULE = SplitRule((_QWEN2,), nfc=True)
_LLAMA3_RULE = SplitRule((_LLAMA3,), whole_words=True, bos=True)

RULES = {
    "gpt-2": _GPT2_RULE,
    "default": _GPT2_RULE,
    "phi-2": _GPT2_RULE,
    "olmo": SplitRule((_GPT2,), nfc=True),  # OLMoE too: both have the tokenizer of GPT-NeoX
    "smollm": _DIGITS_RULE,
    "starcoder": _DIGITS_RULE,
    "qwen2": _QWEN2_RULE,
    "deepseek-r1-qwen": _QWEN2_RULE,
    "llama-bpe": _LLAMA3_RULE,
    "llama3": _LLAMA3_RULE,
    "llama-v3": _LLAMA3_RULE,
    "dbrx": SplitRule((_LLAMA3,)),
    "tekken": SplitRule((_TEKKEN,), whole_words=True, bos=True),
    "gpt-4o": SplitRule((_GPT4O,)),
    "deepseek-llm": SplitRule(_DEEPSEEK_LLM),  # V2 too
    "deepseek-coder": SplitRule(_DEEPSEEK_CODER),
    "deepseek-v3": SplitRule(_DEEPSEEK_V3),
}
