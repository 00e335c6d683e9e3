"""The work through ``LLM`` in this process: one JSON line in, one out."""

from __future__ import annotations

import json
import sys
import time

from inferx import LLM, SamplingParams


def main() -> None:
    model, threads = sys.argv[1], int(sys.argv[2])
    llm = LLM(model, num_threads=threads)
    for line in sys.stdin:
        order = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=order["new_tokens"], ignore_eos=True)
        prompts = [{"prompt_token_ids": ids} for ids in order["prompts"]]
        started, cpu = time.perf_counter(), time.process_time()
        outputs = llm.generate(prompts, params, use_tqdm=False)
        answer = {
            "seconds": time.perf_counter() - started,
            "cpu_seconds": time.process_time() - cpu,
            "tokens": sum(len(o.outputs[0].token_ids) for o in outputs),
            "texts": [o.outputs[0].text for o in outputs] if order.get("texts") else None,
        }
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
