"""A model's tokenizer as files that Hugging Face's libraries read, for clients that count tokens:

python tools/tokenizer_files.py MODEL DIRECTORY
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from inferx.loader import open_checkpoint
from inferx.loader.gguf_file import GGUFFile
from inferx.loader.gguf_tokenizer import tokenizer_json


def main(model: str, directory: str) -> None:
    checkpoint = open_checkpoint(model)
    path = checkpoint.path
    checkpoint.close()
    file = GGUFFile(path)
    text = tokenizer_json(file)
    file.close()
    target = Path(directory)
    target.mkdir(parents=True, exist_ok=True)
    (target / "tokenizer.json").write_text(text)
    (target / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))


if __name__ == "__main__":
    main(*sys.argv[1:])
