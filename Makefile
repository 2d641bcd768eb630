# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds, tries and installs Fief. `make help` lists the goals; `make demo` and `make test` need nothing before them.
#
# Everything goes through cargo. What make adds: the packages of the system (packaging/deps), and one target folder
# with two profiles: release for demo, bench and install, dev for test and check.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PREFIX ?= /usr/local
DESTDIR ?=
# for install alone: libbpf, which cargo builds by make, would be installed there and then not be found
unexport DESTDIR PREFIX
MAKEOVERRIDES :=
CARGO_TARGET_DIR ?= $(CURDIR)/target
# where rustup and Debian put what a plain shell of root may not see
CARGO_HOME ?= $(HOME)/.cargo
export CARGO_TARGET_DIR
export PATH := $(CARGO_HOME)/bin:$(PATH):/usr/sbin:/sbin

CARGO := cargo
FIEF := $(CARGO_TARGET_DIR)/release/fief
# what `fief lab` becomes; it is found beside fief
LAB := $(CARGO_TARGET_DIR)/release/fief-lab
TEST_LOG := $(CARGO_TARGET_DIR)/test.log
# those of the scheduler, in an emulated machine
VM_EXPERIMENTS := cpu-shares cpu-limits kernel-work media combined switch-cost rebind cgi-sandbox guest-servers
EXPERIMENTS := primitives rebind priority-clients queue accounting syn-flood admission-cost parse lrp header-control classes user-vs-kernel whole cgi-sandbox guest-servers metrics service
C_SOURCES = $(shell find bpf shim -name '*.[ch]' ! -name vmlinux.h)

BIN := $(DESTDIR)$(PREFIX)/bin
SHARE := $(DESTDIR)$(PREFIX)/share

CASES ?= 100000
SEED ?=
REQUESTS ?= 100000
# tests that make as many requests as FIEF_TEST_REQUESTS says
SOAKED := queue_impaired queue_postgresql queue_programs queue_proxied queue_servers

.PHONY: help deps build build-fief demo test test-vm fuzz soak check bench deb install install-lab uninstall clean

help: ## list the goals
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

deps: ## install what Fief is built and tested with: apt packages, the pinned Rust, crates
	@packaging/deps $(CARGO_TARGET_DIR)/.deps

build: deps ## build the command fief and its lab, optimised
	@$(CARGO) build --release --locked -p fief-cli -p fief-lab
	@echo "built $(FIEF) and $(LAB)"

# without what tests and experiments need
build-fief:
	@packaging/deps $(CARGO_TARGET_DIR)/.deps-build build
	@$(CARGO) build --release --locked -p fief-cli
	@echo "built $(FIEF)"

demo: build ## watch one paying client beside 0 to 200 others at nginx and Go, without and with Fief's queue (root)
	@$(FIEF) lab demo

test: deps ## run all tests; as root also those with real packets and servers
	@CARGO=$(CARGO) .ci/tests 2>&1 | tee $(TEST_LOG) || failed=1; \
		awk -f .ci/sum.awk $(TEST_LOG) && exit $${failed:-0}

KERNEL ?=

test-vm: deps ## all checks on Debian's own kernels, emulated (QEMU; some minutes each): KERNEL="6.12 7.0 newest"
	@tests/vm/run.sh $(KERNEL)

fuzz: deps ## hold what Fief passes against real servers: CASES (100000) for each, SEED (the time) (root)
	@$(CARGO) run --locked -p fief-tests-differential -- --cases $(CASES) $(if $(SEED),--seed $(SEED))

soak: deps ## show with each server that a queue loses and doubles no request: REQUESTS (100000) in each test (root, some hours)
	@$(CARGO) build --locked -p fief-cli # the tests start it
	@FIEF_TEST_REQUESTS=$(REQUESTS) $(CARGO) test --locked -p fief-tests-netns --no-fail-fast $(addprefix --test ,$(SOAKED))

check: deps ## formatting, lints, licence lines, returns to files
	@failed=; \
	.ci/sources || failed+=" licence and paths"; \
	.ci/rooms --check || failed+=" returns (.ci/rooms)"; \
	$(CARGO) fmt --all --check || failed+=" rustfmt (cargo fmt --all)"; \
	clang-format-19 --dry-run -Werror $(C_SOURCES) || failed+=" clang-format (clang-format-19 -i)"; \
	$(CARGO) clippy --workspace --all-targets --locked -- -D warnings || failed+=" clippy"; \
	[ -z "$$failed" ] || { echo "check: failed:$$failed" >&2; exit 1; }; \
	echo "check: nothing found"

bench: build ## measure what the experiments promise; reports in target/bench (root, some hours)
	@$(CARGO) build --release --locked -p fief-tests-differential # parse asks it
	@for name in $(EXPERIMENTS); do \
		$(FIEF) lab $$name --report $(CARGO_TARGET_DIR)/bench/$$name; \
	done
	@for name in $(VM_EXPERIMENTS); do \
		$(FIEF) lab $$name --vm --report $(CARGO_TARGET_DIR)/bench/vm/$$name; \
	done

deb: build ## make the Debian packages fief and fief-lab in target/deb (dpkg-dev)
	@packaging/deb $(dir $(FIEF)) $(CARGO_TARGET_DIR)/deb

install: build-fief ## install fief, its man pages, completions, unit, schema and examples below PREFIX (/usr/local)
	@packaging/install fief $(dir $(FIEF)) "$(DESTDIR)" $(PREFIX)
	@echo "installed $(BIN)/fief"

install-lab: build ## install fief-lab beside fief
	@packaging/install fief-lab $(dir $(FIEF)) "$(DESTDIR)" $(PREFIX)
	@echo "installed $(BIN)/fief-lab"

uninstall: ## remove what install and install-lab put there
	@rm -f $(BIN)/fief $(BIN)/fief-lab $(SHARE)/man/man1/fief.1 $(SHARE)/man/man1/fief-*.1 \
		$(SHARE)/bash-completion/completions/fief $(SHARE)/zsh/site-functions/_fief \
		$(SHARE)/fish/vendor_completions.d/fief.fish $(DESTDIR)$(PREFIX)/lib/systemd/system/fief.service \
		$(DESTDIR)$(PREFIX)/lib/systemd/system/fief-agent.service $(DESTDIR)$(PREFIX)/lib/sysusers.d/fief.conf \
		$(DESTDIR)$(PREFIX)/include/fief.h $(DESTDIR)$(PREFIX)/include/fief_policy.h $(SHARE)/pkgconfig/fief.pc
	@rm -rf $(SHARE)/fief $(SHARE)/doc/fief

clean: ## remove everything built
	@$(CARGO) clean
