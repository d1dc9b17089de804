# SPDX-License-Identifier: MIT
# Two commands do everything on a fresh machine: `make demo` runs the main job on real input, `make test` passes the tests.
BUILD := build/release
JOBS  := $(shell nproc)
# The CUDA back end is built where a GPU is there; DFLASH_CUDA=ON or OFF overrides.
DFLASH_CUDA ?= $(shell nvidia-smi -L >/dev/null 2>&1 && echo ON || echo OFF)

.PHONY: all deps configure build test demo clean

all: build

deps:
	tools/install_deps.sh

configure: deps
	cmake --preset release -DDFLASH_CUDA=$(DFLASH_CUDA) -DDFLASH_BUILD_TESTS=ON

build: configure
	cmake --build $(BUILD) -j $(JOBS) --target dflash

test: configure
	cmake --build $(BUILD) -j $(JOBS)
	ctest --test-dir $(BUILD) --output-on-failure --timeout 300

demo: build
	tools/demo.sh $(BUILD)/bin/dflash

clean:
	rm -rf build demo-run
