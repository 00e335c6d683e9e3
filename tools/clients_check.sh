#!/usr/bin/env bash
# Real clients against a real server: openai, litellm, LangChain's ChatOpenAI, and guidellm as load generator.
# usage: clients_check.sh PYTHON VENV [OUTPUT]
#   VENV: where inferx is installed; the clients get an environment of their own, build/clients-venv.
#   OUTPUT: a directory for guidellm's summary (default: build/clients).
set -euo pipefail
cd "$(dirname "$0")/.."
python=$1
venv=$(cd "$2" && pwd)
output=${3:-build/clients}
clients=build/clients-venv
key=clients-check-key
model=smollm2-135m-instruct
started=$SECONDS
step() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - started)); }

step "installing the clients"
test -x "$clients/bin/python" || "$python" -m venv "$clients"
# torch first: guidellm wants one, and would take a CUDA build of several GB.
"$clients/bin/python" -m pip install --quiet torch==2.13.0
"$clients/bin/python" -m pip install --quiet torch==2.13.0 openai litellm langchain-openai guidellm
"$clients/bin/python" -m pip list 2> /dev/null | grep -E '^(openai|litellm|langchain-openai|guidellm) '

step "starting the server"
mkdir -p "$output"
log=$output/server.log
"$venv/bin/python" -m inferx.cli.main serve "$model" --port 0 --api-key "$key" --max-model-len 2048 > "$log" 2>&1 &
server=$!
trap 'kill "$server" 2> /dev/null || true; wait "$server" 2> /dev/null || true' EXIT
url=
for _ in $(seq 600); do
    url=$(sed -n 's/^inferx serves \([^ ]*\).*/\1/p' "$log")
    test -z "$url" || break
    kill -0 "$server" 2> /dev/null || { cat "$log"; exit 1; }
    sleep 0.2
done
test -n "$url" || { cat "$log"; exit 1; }
echo "$url"

# Nothing of what the clients phone home about is wanted.
export DO_NOT_TRACK=1 LITELLM_TELEMETRY=False LANGCHAIN_TRACING_V2=false HF_HUB_OFFLINE=1
for client in openai litellm langchain; do
    step "$client"
    "$clients/bin/python" "tests/clients/${client}_client.py" "$url" "$model" "$key"
done

step "guidellm: 4 streams of 64 tokens in, 32 out"
"$venv/bin/python" tools/tokenizer_files.py "$model" "$output/tokenizer"
"$clients/bin/guidellm" run \
    --backend "kind=openai_http,target=$url,model=$model,api_key=$key,request_format=/v1/chat/completions" \
    --profile kind=concurrent,streams=4 \
    --constraint kind=max_requests,count=32 --constraint kind=max_duration,seconds=120 \
    --tokenizer "kind=huggingface_auto,model=$output/tokenizer" \
    --data kind=synthetic_text,prompt_tokens=64,output_tokens=32 \
    --output "kind=json,path=$output/guidellm-full.json" --disable-console-interactive
"$clients/bin/python" tests/clients/guidellm_summary.py "$output/guidellm-full.json" "$output/guidellm.json"

step "the server ends in order"
kill -TERM "$server"
code=0
wait "$server" || code=$?
trap - EXIT
test "$code" = 0 || { echo "exit code $code"; cat "$log"; exit 1; }
! grep -A20 Traceback "$log" || exit 1
step "done"
