"""Every bound on what a request may ask for, in one table; ``docs/limits.md`` is printed from it.

All are checked before the engine sees the request.  A new one is a ``_limit(...)`` line here and a
``LIMIT.check(count, param)`` where the field is read; the error names the field, the bound and what came.
``python -m inferx.server.limits_table`` prints the document.
"""

from __future__ import annotations

from dataclasses import dataclass

from inferx import sampling_params as sampling
from inferx import structured_outputs as structured
from inferx.server.errors import ApiError

KIB, MIB = 1 << 10, 1 << 20


@dataclass(frozen=True)
class Limit:
    """value: the bound (the default one when there is a ``flag``); None: it follows from the model.
    unit: of value.  status: the HTTP status of an excess.  flag: the option of ``inferx serve`` for it."""

    name: str
    value: int | None
    unit: str
    what: str
    status: int
    flag: str | None
    section: str

    @property
    def most(self) -> int:
        """The value of a limit that has one."""
        assert self.value is not None, self.name
        return self.value

    def check(self, count: int, param: str) -> None:
        """ApiError naming the field, the bound and the count when this is too many."""
        if count > self.most:
            raise self.error(count, param)

    def error(self, count: int, param: str) -> ApiError:
        return ApiError(
            self.status,
            f"{param} takes at most {self.most} {self.unit}, got {count}",
            param=param,
            code=None if self.status == 400 else "too_large",
        )


LIMITS: dict[str, Limit] = {}
_section = ""


def _limit(
    name: str, value: int | None, unit: str, what: str, *, status: int = 400, flag: str | None = None
) -> Limit:
    assert name not in LIMITS, name
    LIMITS[name] = Limit(name, value, unit, what, status, flag, _section)
    return LIMITS[name]


_section = "Connections and requests"
CONNECTIONS = _limit(
    "connections",
    1024,
    "connections",
    "Open at once. Beyond that, an idle one is closed; when there is none, the new one gets this status.",
    status=503,
    flag="--max-connections",
)
HEADER_LINES = _limit("header_lines", 128, "lines", "Header lines of a request.", status=431)
HEADER_BYTES = _limit(
    "header_bytes",
    64 * KIB,
    "bytes",
    "Headers of a request with its address, counted while they come in.",
    status=431,
    flag="--max-header-size",
)
HEADER_SECONDS = _limit(
    "header_seconds",
    15,
    "seconds",
    "From the connection (or the first byte of a further request) to the end of its headers.",
    status=408,
    flag="--header-timeout",
)
BODY_BYTES = _limit(
    "body_bytes",
    16 * MIB,
    "bytes",
    "The body, counted while it comes in, whatever Content-Length says. Compressed ones are refused (415).",
    status=413,
    flag="--max-body-size",
)
BODY_SECONDS = _limit(
    "body_seconds",
    30,
    "seconds",
    "For the body to come in; one second more for each 16 KiB that has come.",
    status=408,
    flag="--body-timeout",
)
KEEP_ALIVE_SECONDS = _limit(
    "keep_alive_seconds",
    60,
    "seconds",
    "Between two requests of a connection; then it is closed.",
    status=0,
    flag="--keep-alive-timeout",
)
WRITE_SECONDS = _limit(
    "write_seconds",
    60,
    "seconds",
    "For a client to read what is ready for it (64 KiB are kept ready); then it counts as gone.",
    status=0,
    flag="--write-timeout",
)
JSON_NESTING = _limit("json_nesting", 200, "levels", "Arrays and objects within each other, in any body.")
JSON_VALUES = _limit(
    "json_values",
    1_000_000,
    "brackets, commas and colons",
    "In any body, those within strings included: what parsing takes memory and time for.",
)
WAITING = _limit(
    "waiting",
    4096,
    "requests",
    "Prompts that wait for a place in the batch, with those being tokenised.",
    status=429,
    flag="--max-waiting",
)
TEXT_SECONDS = _limit(
    "text_seconds",
    30,
    "seconds",
    "For tokenising a prompt or rendering the chat template.",
    flag="--text-timeout",
)

_section = "Prompts"
PROMPTS = _limit("prompts", 2048, "prompts", "Prompts of one completion request.")
PROMPT_TOKENS = _limit(
    "prompt_tokens", None, "tokens", "The context (`--max-model-len`) less one token for the output."
)
PROMPT_BYTES = _limit(
    "prompt_bytes",
    None,
    "bytes",
    "The context times the bytes of the longest token; longer text is refused without tokenising it.",
)
TRUNCATED_BYTES = _limit(
    "truncated_bytes", MIB, "bytes", "Text to be cut by truncate_prompt_tokens, if prompt_bytes is less."
)
TOKEN_IDS = _limit("token_ids", MIB, "token ids", "Ids in one list (/detokenize, allowed_token_ids).")
CACHE_SALT_CHARS = _limit("cache_salt_chars", 256, "characters", "cache_salt.")

_section = "Sampling"
N = _limit("n", sampling.MAX_N, "samples", "n; at most --max-num-seqs, too.")
LOGPROBS = _limit(
    "logprobs", sampling.MAX_LOGPROBS, "alternatives", "logprobs, top_logprobs, prompt_logprobs."
)
STOP = _limit("stop", sampling.MAX_STOP_STRINGS, "strings", "stop.")
STOP_CHARS = _limit("stop_chars", sampling.MAX_STOP_STRING_CHARS, "characters", "Each string of stop.")
STOP_TOKEN_IDS = _limit("stop_token_ids", sampling.MAX_STOP_TOKEN_IDS, "token ids", "stop_token_ids.")
LOGIT_BIAS = _limit(
    "logit_bias", sampling.MAX_LOGIT_BIAS, "entries", "logit_bias; each value from -100 to 100."
)
BAD_WORDS = _limit("bad_words", sampling.MAX_BAD_WORDS, "strings", "bad_words.")
BAD_WORD_CHARS = _limit(
    "bad_word_chars", sampling.MAX_STOP_STRING_CHARS, "characters", "Each string of bad_words."
)
ALLOWED_TOKEN_IDS = _limit("allowed_token_ids", None, "token ids", "allowed_token_ids: the vocabulary.")

_section = "Conversations"
MESSAGES = _limit("messages", 10_000, "messages", "Messages of a conversation.")
ROLE_CHARS = _limit("role_chars", 64, "characters", "A message's role, letters and digits only.")
CONTENT_PARTS = _limit("content_parts", 4096, "parts", "Parts of one message's content.")
TOOLS = _limit("tools", 256, "tools", "tools.")
TOOL_NAME_CHARS = _limit("tool_name_chars", 128, "characters", "A function's name.")
TOOL_CALLS = _limit("tool_calls", 256, "calls", "tool_calls of one message.")
TEMPLATE_KWARGS = _limit("template_kwargs", 32, "entries", "chat_template_kwargs, scalars only.")
TEMPLATE_KWARG_NAME_CHARS = _limit("template_kwarg_name_chars", 64, "characters", "Each of their names.")
TEMPLATE_KWARG_CHARS = _limit("template_kwarg_chars", 4096, "characters", "Each of their values.")

_section = "Responses"
METADATA = _limit("metadata", 16, "entries", "metadata of a response.")
METADATA_KEY_CHARS = _limit("metadata_key_chars", 64, "characters", "Each key of metadata.")
METADATA_VALUE_CHARS = _limit("metadata_value_chars", 512, "characters", "Each value of metadata.")
LABEL_CHARS = _limit(
    "label_chars", 512, "characters", "Ids and names that are only carried along (call_id, user, ...)."
)
STORED_RESPONSES = _limit(
    "stored_responses", 1024, "responses", "Kept in memory; the oldest makes room for a new one.", status=404
)
STORED_RESPONSE_BYTES = _limit(
    "stored_response_bytes",
    64 * MIB,
    "bytes",
    "Of all kept responses with their input; the oldest makes room, and one that is larger is not kept.",
    status=404,
)
STORED_RESPONSE_SECONDS = _limit(
    "stored_response_seconds", 86_400, "seconds", "From its end; then a response is forgotten.", status=404
)
BACKGROUND_RESPONSES = _limit(
    "background_responses", 64, "responses", "Created with background=true and not finished.", status=429
)
EVENT_LOG_BYTES = _limit(
    "event_log_bytes",
    4 * MIB,
    "bytes",
    "Events of one background response that are kept for streaming it later; the first ones go first.",
)

_section = "Files and batches"
FILE_BYTES = _limit(
    "file_bytes", 200 * MIB, "bytes", "An uploaded file, counted while it comes in.", status=413
)
FILES = _limit("files", 1000, "files", "Uploaded ones that are kept; delete some to upload more.", status=429)
FILES_BYTES = _limit(
    "files_bytes", 10 << 30, "bytes", "All files that are kept, those of answers included.", status=429
)
FILE_NAME_CHARS = _limit("file_name_chars", 255, "characters", "The name an upload gives itself.")
BATCHES = _limit("batches", 1000, "batches", "That are kept; the oldest finished one makes room.", status=429)
UNFINISHED_BATCHES = _limit(
    "unfinished_batches", 100, "batches", "That wait or run; those of more are refused.", status=429
)
BATCH_LINES = _limit("batch_lines", 50_000, "lines", "Requests of one batch (`run-batch`: no bound).")
BATCH_LINE_BYTES = _limit("batch_line_bytes", 16 * MIB, "bytes", "One line of a batch file.")
CUSTOM_ID_CHARS = _limit("custom_id_chars", 512, "characters", "custom_id of a line.")
BATCH_ERRORS = _limit("batch_errors", 100, "errors", "Of a file that is refused, that are listed.")

_section = "Structured output"
GRAMMAR_CHARS = _limit(
    "grammar_chars", structured.MAX_GRAMMAR_CHARS, "characters", "A grammar, a JSON schema or a tag as text."
)
REGEX_CHARS = _limit("regex_chars", structured.MAX_REGEX_CHARS, "characters", "A regular expression.")
GRAMMAR_DEPTH = _limit(
    "grammar_depth", structured.MAX_GRAMMAR_DEPTH, "levels", "Parentheses within each other."
)
SCHEMA_DEPTH = _limit("schema_depth", structured.MAX_SCHEMA_DEPTH, "levels", "A JSON schema's nesting.")
SCHEMA_VALUES = _limit("schema_values", structured.MAX_SCHEMA_VALUES, "values", "In a JSON schema.")
CHOICES = _limit("choices", structured.MAX_CHOICES, "texts", "choice.")
REPETITIONS = _limit(
    "repetitions", structured.MAX_REPETITIONS, "repetitions", "Counts such as maxLength or {m,n}, each."
)
COMPILE_SECONDS = _limit(
    "compile_seconds", 2, "seconds", "For compiling a grammar, beside waiting for its turn."
)


def document() -> str:
    """docs/limits.md."""
    lines = [
        "# Limits",
        "",
        "<!-- Printed by `python -m inferx.server.limits_table`; a test compares. -->",
        "",
        "Every bound is checked before the engine sees a request. An excess is an error in OpenAI's shape",
        "that names the field, the bound and what came; the status is that of the table (0: the connection",
        "is closed).",
    ]
    sections: dict[str, list[Limit]] = {}
    for limit in LIMITS.values():
        sections.setdefault(limit.section, []).append(limit)
    for section, limits in sections.items():
        lines += [
            "",
            f"## {section}",
            "",
            "| name | at most | status | of what | flag |",
            "|---|---|---|---|---|",
        ]
        lines += [_row(limit) for limit in limits]
    return "\n".join(lines) + "\n"


def _row(limit: Limit) -> str:
    most = "from the model" if limit.value is None else f"{limit.value:,} {limit.unit}"
    flag = "" if limit.flag is None else f"`{limit.flag}`"
    return f"| {limit.name} | {most} | {limit.status} | {limit.what} | {flag} |"


if __name__ == "__main__":
    print(document(), end="")
