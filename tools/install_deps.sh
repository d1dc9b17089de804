#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs the build's Debian packages (Debian 12 and later, Ubuntu 24.04 and later). Does nothing when all are there.
set -euo pipefail

packages=(g++ cmake ninja-build pkg-config python3
          libcli11-dev libspdlog-dev libfmt-dev nlohmann-json3-dev libpcre2-dev libutf8proc-dev
          libdnnl-dev libhwy-dev libgtest-dev libbenchmark-dev)

missing=()
for package in "${packages[@]}" "$@"; do
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || { echo "install_deps: needs root or sudo to install: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "install_deps: installing ${missing[*]}" >&2
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
