#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks that includes follow the layers of ARCHITECTURE.md: nothing points up, folders on one line do not see each other,
device code includes nothing outside its folder, and only cli/ prints or exits. Exit code 1 with one line a violation."""
import pathlib
import re
import sys

LAYERS = [["base"], ["tensor"], ["kernels", "comm", "io"], ["data", "model"], ["target"], ["draft"], ["generate"], ["train"], ["cli"]]
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
# Packages whose headers are spelt with quotes: Highway includes itself and the including file once for each instruction set.
PACKAGES = {"hwy"}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"')
PRINTS = re.compile(r"\b(std::cout|std::exit|printf\s*\(|std::abort|fmt::print\s*\(stdout|fmt::print\s*\(\")")


def check_file(path: pathlib.Path, src: pathlib.Path) -> list[str]:
    faults = []
    relative = path.relative_to(src)
    layer = relative.parts[0]
    is_device_code = relative.parts[:3] == ("kernels", "cuda", "device")
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        where = f"src/{relative}:{number}"
        found = INCLUDE.match(line)
        if found:
            target = found.group(1)
            other = target.split("/")[0]
            if is_device_code:
                if not (path.parent / target).exists() and not target.startswith("kernels/cuda/device/"):
                    faults.append(f"{where}: device code includes {target}, outside its folder")
            elif other in PACKAGES:
                continue
            elif other not in LEVEL:
                faults.append(f'{where}: "{target}" is not spelt from src/')
            elif other != layer and LEVEL[other] >= LEVEL[layer]:
                faults.append(f"{where}: {layer} (level {LEVEL[layer]}) includes {target} (level {LEVEL[other]})")
        if layer != "cli" and path.suffix in (".cpp", ".h") and PRINTS.search(line.split("//")[0]):
            faults.append(f"{where}: only cli/ prints or exits")
    return faults


def main() -> int:
    src = pathlib.Path(__file__).resolve().parent.parent / "src"
    files = [p for p in sorted(src.rglob("*")) if p.suffix in (".h", ".cpp", ".cu", ".cuh")]
    faults = []
    for path in files:
        layer = path.relative_to(src).parts[0]
        if layer not in LEVEL:
            faults.append(f"src/{layer} is not a layer")
            continue
        faults += check_file(path, src)
    for fault in faults:
        print(fault)
    print(f"check_layers: {len(files)} files, {len(faults)} violations")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
