"""Byte-level BPE in plain Python over the merges of a GGUF file, split by the ``regex`` module with
the patterns written out here, and texts to try it on."""

from __future__ import annotations

import random
import unicodedata
from functools import cache
from itertools import pairwise

import regex

from inferx.loader.gguf_file import GGUFFile

TEXTS = [
    "",
    " ",
    "Hello world  a    b\n\tc ...",
    "  two leading spaces and two trailing  ",
    "\n\n\n  \n\t\t x\r\ny",
    "it's we'll THEY'RE I'd 'sup",
    "1234567890 3.14159 1,000,000 x86_64 ²³ ٣٤ Ⅷ",
    "def f(x):\n    return {'a': [x ** 2 for _ in range(10)]}  # done\n",
    "été naïve Ångström e\u0301 o\u0308 \u1100\u1161\u11a8",
    "日本語のテキスト、中文字符。한국어 문장 ไทย हिन्दी",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 😀😀",
    "\u200b\u00a0\u2003\u3000 odd spaces \ufeff",
    "http://example.org/a?b=c&d=%20#e <b>bold</b> &amp; \\n \\u0041",
    "\x00\x01\x7f control",
    "ｆｕｌｌ ｗｉｄｔｈ ﬁ ﷺ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 \U0010ffff",
    "▁▁ already ▁marked",
    "ABCdef GHIjkl XMLHttp iPhone ǅungla ʰa ΑΒγδ Что-ТО ЇжаК'S don'T L'été O'ReILLY's",
    "$12.50+€3 =x<y>/z// ~/.rc\n/usr/\n\n/ ^`a` #1 !a!b -c.d ?É ×÷ ⟨a⟩ ¡hola! «oui» „ja“ ‘x’ 、。〈〉",
    "1234567 ٣٤٥٦ 十二三 a1b22c333d4444 ½⅓ ①②③④ 12ab34",
    "漢字かなカナ漢字ー ｶﾅ ㄅㄆ ᄀᄁ 中文English混合123テスト。한국어English ру́сский",
    "\r\r\n\n \r \t\n x \u0085 \u2028y  \n  ",
    "trailing spaces   ",
    "ქართული Ქართული ՀայԵրեն ꟊA Ⅷⅷ ⓐⒶ 𝐀𝐛 𐐀𐐨 𞤀𞤢 ﬁ ＡＢｃ！？ A\u0308a\u0308",
    "a" * 300,
]


def random_texts(seed: int, count: int) -> list[str]:
    rng = random.Random(seed)
    alphabets = [
        "abcdefghij ABC  \n\t'",
        "0123456789.,- ",
        "éàüßñçøåÆ œ",
        "日本語中文한국어 ",
        "😀👩‍👧🏽🇩🇪 ",
        "{}[]()<>;:=+-*/ \n    ",
        "".join(map(chr, range(1, 256))),
    ]
    return [
        "".join(
            rng.choice(rng.choice(alphabets))
            if rng.random() < 0.3
            else rng.choice(alphabets[i % len(alphabets)])
            for _ in range(rng.randrange(1, 60))
        )
        for i in range(count)
    ]


# Named as in the files; the patterns are those of the published tokenizers (llama.cpp, src/llama-vocab.cpp,
# collects them).  Each splits what those before it left.
_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
_GPT2 = _CONTRACTIONS + r"| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_WORDS = rf"(?i:{_CONTRACTIONS})" + r"|[^\r\n\p{L}\p{N}]?\p{L}+"
_CASES = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+CONTRACTION|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*CONTRACTION|"
    r"\p{N}{COUNT}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# The list of letters in DeepSeek's rule is those with a case up to Unicode 11, less these blocks, and of the
# supplementary planes five scripts.  U+0295 has a case in older versions only.
_CASED = (
    r"(?:[[\p{Lu}\p{Ll}\p{Lt}]--[\u0560-\u058F\u10C6-\u10FF\u1C80-\u1C8F\u2D00-\u2D2F\uA790-\uA7FF"
    r"\uAB30-\uAB6F\U00010000-\U0010FFFF]]|[[\p{Lu}\p{Ll}]&&[\p{Script=Deseret}\p{Script=Osage}"
    r"\p{Script=Old_Hungarian}\p{Script=Warang_Citi}\p{Script=Adlam}]]|\u0295)"
)
RULES: dict[str, tuple[str, ...]] = {
    "gpt-2": (_GPT2,),
    "default": (_GPT2,),
    "phi-2": (_GPT2,),
    "olmo": (_GPT2,),
    "smollm": (r"\p{N}", _GPT2),
    "starcoder": (r"\p{N}", _GPT2),
    "qwen2": (_WORDS + r"|\p{N}" + _REST,),
    "deepseek-r1-qwen": (_WORDS + r"|\p{N}" + _REST,),
    "llama-bpe": (_WORDS + r"|\p{N}{1,3}" + _REST,),
    "llama3": (_WORDS + r"|\p{N}{1,3}" + _REST,),
    "llama-v3": (_WORDS + r"|\p{N}{1,3}" + _REST,),
    "dbrx": (_WORDS + r"|\p{N}{1,3}" + _REST,),
    "tekken": (_CASES.replace("CONTRACTION", "").replace("COUNT", "1"),),
    "gpt-4o": (_CASES.replace("CONTRACTION", rf"(?i:{_CONTRACTIONS})?").replace("COUNT", "1,3"),),
    "deepseek-llm": (
        r"[\r\n]",
        rf"\s?{_CASED}+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        "[一-龥ࠀ-一가-\ud7ff]+",
        r"\p{N}",
    ),
    "deepseek-coder": (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+", r"\p{N}"),
    "deepseek-v3": (
        r"\p{N}{1,3}",
        "[一-龥\u3040-ゟ゠-ヿ]+",
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}\~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ),
}
COMPOSED = ("qwen2", "deepseek-r1-qwen", "olmo")  # NFC first
WHOLE_WORDS = ("llama-bpe", "llama3", "llama-v3", "tekken")  # looked up before any merge


def split(text: str, pre: str) -> list[str]:
    pieces = [text]
    for pattern in RULES[pre]:
        pieces = [part for piece in pieces for part in _isolated(piece, pattern)]
    return pieces


def _isolated(text: str, pattern: str) -> list[str]:
    """Matches, and what is between them."""
    parts, end = [], 0
    for match in regex.finditer(pattern, text, regex.VERSION1):
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


class PlainBPE:
    """Sennrich et al.: join the neighbours with the lowest merge rank until none is left."""

    def __init__(self, file: GGUFFile) -> None:
        tokens = file.metadata["tokenizer.ggml.tokens"]
        self.ids = {token: i for i, token in enumerate(tokens)}
        self.ranks = {tuple(m.split(" ")): i for i, m in enumerate(file.metadata["tokenizer.ggml.merges"])}
        self.pre = file.metadata["tokenizer.ggml.pre"]
        visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
        hidden = [b for b in range(256) if b not in visible]
        self.alphabet = {b: chr(b) for b in visible} | {b: chr(256 + i) for i, b in enumerate(hidden)}

    @cache  # noqa: B019
    def word(self, word: str) -> list[int]:
        parts = [self.alphabet[b] for b in word.encode()]
        if self.pre in WHOLE_WORDS and "".join(parts) in self.ids:
            return [self.ids["".join(parts)]]
        while len(parts) > 1:
            rank, i = min((self.ranks.get(pair, 1 << 30), i) for i, pair in enumerate(pairwise(parts)))
            if rank == 1 << 30:
                break
            parts[i : i + 2] = [parts[i] + parts[i + 1]]
        # SmolLM2 has no token for some control bytes; its tokenizer drops them, having no unknown token.
        return [self.ids[part] for part in parts if part in self.ids]

    def encode(self, text: str) -> list[int]:
        if self.pre in COMPOSED:
            text = unicodedata.normalize("NFC", text)
        return [i for word in split(text, self.pre) for i in self.word(word)]
