#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# The main job on real input: chats in, a trained drafter out, its acceptance length measured, text generated with it.
# usage: tools/demo.sh path/to/dflash [run folder]
set -euo pipefail
cd "$(dirname "$0")/.."
dflash=$1
run=${2:-demo-run}
target=fixtures/tiny-qwen3.5
held_out=fixtures/data/chat_heldout.jsonl

rm -rf "$run"
mkdir -p "$run"
started=$SECONDS

echo "== 1 of 4: prepare the chats (the target's own answers to 4,835 requests)"
"$dflash" prepare --target "$target" --data fixtures/data/regen_train.jsonl --out "$run/data"

echo "== 2 of 4: train a drafter"
"$dflash" train --target "$target" --data "$run/data" --out "$run/train" \
    --block-size 8 --draft-layers 4 --token-budget 1024 --max-anchors 256 --optimizer muon --lr 3e-3 --steps 1250 \
    --eval-prompts "$held_out" --eval-every 400

echo "== 3 of 4: acceptance length on held-out chats, untrained and trained"
"$dflash" eval --target "$target" --draft "$run/train/draft" --prompts "$held_out" --limit 48 --max-new-tokens 96 --untrained --json \
    >"$run/eval-untrained.json"
"$dflash" eval --target "$target" --draft "$run/train/draft" --prompts "$held_out" --limit 48 --max-new-tokens 96 --json \
    >"$run/eval-trained.json"
trained_seconds=$((SECONDS - started))

echo "== 4 of 4: generate with it"
"$dflash" generate --target "$target" --draft "$run/train/draft" --max-new-tokens 96 \
    --chat "Write the function parse_header(line) of the module http.client. Return name and value."

python3 - "$run" "$trained_seconds" <<'PY'
import json, pathlib, sys
run, seconds = pathlib.Path(sys.argv[1]), int(sys.argv[2])
untrained, trained = (json.loads((run / f"eval-{k}.json").read_text()) for k in ("untrained", "trained"))
same = all(e["identical_to_plain_greedy"] for e in (untrained, trained))
print(f"""
| drafter   | acceptance length (tokens a verify step) | identical to plain greedy |
|-----------|------------------------------------------|---------------------------|
| untrained | {untrained['acceptance_length']:.3f}                                    | {'yes' if untrained['identical_to_plain_greedy'] else 'NO'}                       |
| trained   | {trained['acceptance_length']:.3f}                                    | {'yes' if trained['identical_to_plain_greedy'] else 'NO'}                       |

prepare, training and evaluation took {seconds // 60} min {seconds % 60} s
identical to plain greedy: {'yes' if same else 'NO'}""")
sys.exit(0 if same and trained["acceptance_length"] > untrained["acceptance_length"] else 1)
PY
