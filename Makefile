# premix: `make` builds bin/premix, `make demo` shows it, `make test` checks it.

SHELL   := /bin/bash
GO      ?= $(or $(shell command -v go),$(wildcard /usr/local/go/bin/go),go)
VERSION ?= $(or $(shell git describe --tags --always --dirty 2>/dev/null),unknown)

# staticcheck and govulncheck are run at fixed versions, built by this
# toolchain: an analyser built by an older Go cannot read newer code.
STATICCHECK ?= honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK ?= golang.org/x/vuln/cmd/govulncheck@v1.8.0

TEST_TIMEOUT ?= 30m
SOAK_TIMEOUT ?= 2h

export GO STATICCHECK GOVULNCHECK
# Without /proc Go does not find its own directory.
ifeq ($(wildcard /proc/self/exe),)
export GOROOT := $(abspath $(dir $(realpath $(GO)))/..)
endif
export PATH := $(dir $(GO)):$(PATH)

# Package internal/hotstart/procstate has the entry.
.PHONY: build
build: go
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -E premix_entry -X main.version=$(VERSION)' -o bin/premix ./cmd/premix
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -E premix_entry' -o bin/premix-shim ./cmd/premix-shim
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o bin/premix-demo ./cmd/premix-demo

# dist/python/dist/premix-*.whl, which brings premix to users of pip.
.PHONY: wheel
wheel: build
	@scripts/setup.sh wheel
	scripts/wheel.sh $${XDG_CACHE_HOME:-$$HOME/.cache}/premix/python/1/bin/python bin dist/python/dist

# A release in RELEASE, which must not exist: packages, wheels, an image, digests. RELEASE_KEY
# names the key that signs it (scripts/dist.sh).
RELEASE ?= release
.PHONY: dist
dist: go
	@scripts/setup.sh wheel
	scripts/dist.sh $(RELEASE)

# The pages of docs/cli, from the commands themselves.
.PHONY: reference
reference: build
	rm -rf bin/manual docs/cli
	bin/premix manual bin/manual
	cp -r bin/manual/cli docs/cli

# The pictures of pages in the documentation, after a change of a page.
.PHONY: screenshots
screenshots: setup-test
	scripts/screenshots.sh

# The site of the documentation, in site.
.PHONY: docs
docs: reference
	@scripts/setup.sh docs
	$${XDG_CACHE_HOME:-$$HOME/.cache}/premix/docs/1/bin/mkdocs build --quiet --strict

# All links, each how-to word for word, the blocks of the first pages, and the verbs and flags of
# all pages.
.PHONY: docs-check
docs-check: setup-test
	$(GO) test -count=1 ./docs
	$(GO) test -count=1 -run '^(TestHowTo|TestBlocks|TestDocumentedCommands|TestReference)$$' ./cmd/premix

.PHONY: go
go:
	@scripts/setup.sh go

# Everything for the tests and the benchmarks.
.PHONY: setup
setup:
	@scripts/setup.sh go test bench containerd

# Nothing but Go is needed: the aligner is a part of premix.
.PHONY: demo
demo: build
	@rm -rf demo-out
	bin/premix demo --out demo-out

.PHONY: test
test: setup-test build lint
	$(GO) test -timeout $(TEST_TIMEOUT) ./...

# All packages with the race detector, one after another: an hour on two cores. RACE names
# some of them.
RACE ?= $(shell $(GO) list ./...)
.PHONY: race
race: setup-test
	@for p in $(RACE); do CGO_ENABLED=1 nice $(GO) test -race -p 1 -timeout $(SOAK_TIMEOUT) $$p || failed="$$failed $$p"; done; \
		test -z "$$failed" || { echo "failed:$$failed" >&2; exit 1; }

# Attacks premix as another user of the machine would; needs root.
.PHONY: attacks
attacks: build
	scripts/attacks.sh bin/premix

# Causes of ten kinds, planted beside tasks on a machine with a load of twice its processors, and
# quiet windows, explained: four minutes a round, one JSON line a window. Needs root.
EXPLAIN_TRIALS ?= 5
.PHONY: explain-trials
explain-trials: build
	PREMIX_EXPLAIN_TRIALS=$(EXPLAIN_TRIALS) $(GO) test -count=1 -v -timeout 3h -run '^TestExplainTrials$$' ./cmd/premix

# The same tests with the fault runs made long.
.PHONY: soak
soak: setup-test build
	@scripts/setup.sh soak containerd-1.7 ecosystem transfer
	PREMIX_SOAK=1 $(GO) test -count=1 -timeout $(SOAK_TIMEOUT) ./...
	$(MAKE) attacks conformance soak-blast

# The whole matrix of conformance with BLAST+, in pieces of some minutes on two quiet cores,
# but for those of Real, which took up to 50 beside other work; SOAK_BLAST names some of them, and PREMIX_SOAK_NTH=N takes one cell of N of
# Generated and Real: an odd number, since cells with several queries and with one take turns.
# PREMIX_SOAK_FROM=N continues the part of clusters at N fragments.
SOAK_BLAST ?= $(foreach p,blastn megablast blastp blastx tblastn tblastx,Generated/$(p) Real/$(p) Together/$(p) Large/$(p)) \
	$(foreach k,v4 v4-parsed v4-masks v5-parsed v5-parsed-taxmap v5-taxid v5-masks,Kinds/$(k)) \
	$(foreach p,blastp blastx tblastn tblastx,Queries/$(p))
.PHONY: soak-blast
soak-blast: setup-test
	$(GO) test -c -o bin/search.test ./internal/blast/search
	cd internal/blast/search && PREMIX_SOAK=blast ../../../bin/search.test -test.v -test.run TestStartOnce
	cd internal/blast/search && for p in $(SOAK_BLAST); do echo "== $$p"; \
		PREMIX_SOAK=blast ../../../bin/search.test -test.v -test.timeout 90m -test.run "TestConformance$${p/\//$$/^}$$" || exit 1; done
	PREMIX_SOAK=blast $(GO) test -count=1 -v -timeout 4h -run '^TestBlastClusterConformance$$' ./cmd/premix

# containerd's suites for snapshotters as of 1.7 and 1.6, that of 2.1 is among the
# tests; Kubernetes' own types, and a real API server, on what is in dist; and the
# engine kubernetes on a real control plane, with stand-ins for many kubelets, which `make
# test` does too if that is built, and with a real one whose images come through the
# snapshotter.
.PHONY: conformance
conformance: go
	@scripts/setup.sh containerd kubernetes
	cd internal/image/snapshotter/conformance && $(GO) test -count=1 . && $(GO) test -count=1 -modfile=go-1.6.mod .
	cd dist/containerd && $(GO) test -count=1 .
	$(GO) test -count=1 ./internal/testkit/kubetest ./internal/engine/kubernetes
	$(GO) test -count=1 -run 'TestKubernetes$$' ./cmd/premix
	PREMIX_CONFORMANCE=1 $(GO) test -count=1 -run 'TestKubelet$$' ./internal/image/snapshotter

.PHONY: lint
lint: go
	@scripts/lint.sh

# Every fuzz target for FUZZ_TIME each.
FUZZ_TIME ?= 10s
.PHONY: fuzz
fuzz: go
	@FUZZ_TIME=$(FUZZ_TIME) scripts/fuzz.sh

# Looks up known vulnerabilities, and notes in scripts/vulnerabilities.txt that this was done.
.PHONY: vulnerabilities
vulnerabilities: go
	$(GO) run $(GOVULNCHECK) ./...
	$(GO) run ./scripts/vulnerabilities -update go.mod scripts/vulnerabilities.txt

.PHONY: fmt
fmt: go
	$(GO) fmt ./...

# BENCH_ARGS are passed on: see `make bench-hotstart BENCH_ARGS=-help`.
.PHONY: bench-hotstart
bench-hotstart: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-hotstart ./bench/hotstart
	bin/bench-hotstart $(BENCH_ARGS)

.PHONY: bench-tools
bench-tools: setup-bench build
	@scripts/setup.sh tools
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-tools ./bench/tools
	bin/bench-tools $(BENCH_ARGS)

.PHONY: bench-dropin
bench-dropin: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-dropin ./bench/dropin
	bin/bench-dropin $(BENCH_ARGS)

.PHONY: bench-store
bench-store: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-store ./bench/store
	bin/bench-store $(BENCH_ARGS)

.PHONY: bench-containers
bench-containers: setup-bench build
	@scripts/setup.sh containerd nydus
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-containers ./bench/containers
	bin/bench-containers $(BENCH_ARGS)
	@$(MAKE) --no-print-directory bench-travel BENCH_ARGS=

.PHONY: bench-travel
bench-travel: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-travel ./bench/travel
	PATH="$(CURDIR)/bin:$$PATH" bin/bench-travel $(BENCH_ARGS)

.PHONY: bench-tasks
bench-tasks: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-tasks ./bench/tasks
	bin/bench-tasks $(BENCH_ARGS)

.PHONY: bench-transfer
bench-transfer: setup-bench build
	@scripts/setup.sh test transfer
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-transfer ./bench/transfer
	bin/bench-transfer $(BENCH_ARGS)

.PHONY: bench-files
bench-files: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-files ./bench/files
	bin/bench-files $(BENCH_ARGS)

.PHONY: bench-blast
bench-blast: setup-test build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-blast ./bench/blast
	bin/bench-blast $(BENCH_ARGS)

.PHONY: bench-replay
bench-replay: setup-bench build
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-replay ./bench/replay
	bin/bench-replay $(BENCH_ARGS)

.PHONY: bench-watch
bench-watch: go
	CGO_ENABLED=0 $(GO) build -trimpath -o bin/bench-watch ./bench/watch
	bin/bench-watch $(BENCH_ARGS)

.PHONY: setup-test setup-bench
setup-test: go
	@scripts/setup.sh test containerd
setup-bench: go
	@scripts/setup.sh test bench

.PHONY: clean
clean:
	rm -rf bin demo-out bench-work
