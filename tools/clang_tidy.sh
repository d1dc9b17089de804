#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Runs clang-tidy over the sources of the layers named, or of all of them, with the settings in .clang-tidy: any finding fails. A full run takes
# about ten minutes of two cores, most of it in the headers of cli's argument parser.
#   tools/clang_tidy.sh [LAYER ...]
set -euo pipefail
cd "$(dirname "$0")/.."

layers=$(IFS='|'; echo "${*:-[a-z]+}")
cmake -G Ninja -S . -B build/tidy -DCMAKE_BUILD_TYPE=Release -DDFLASH_CUDA=OFF -DDFLASH_BUILD_TESTS=OFF >/dev/null
grep -oP '"file": "\K[^"]+' build/tidy/compile_commands.json | grep -E "/src/($layers)/" |
    xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/tidy 2> >(grep -v 'warnings generated' >&2)
