# make demo and make test are all the set-up there is: on Debian and Ubuntu they install what is missing. `go build ./...` works without make.

GO      := $(shell command -v go || echo /usr/local/go/bin/go)
VERSION := $(shell git describe --always --dirty 2>/dev/null || echo devel)
THINGS   = cc certs verbs-headers
GPU_PKG := csrc cuda nccl bench links internal/nvml cmd/commprobe

# The packages that promise to need no cgo are marked in tidy_test.go's table; those that exist.
NO_CGO  := $(wildcard $(shell sed -n 's|^\t"\([^"]*\)":.*noCgo: true.*|./\1|p' tidy_test.go))

# These start no goroutine and were just tested: the race detector finds nothing in them, and takes three times as long.
SERIAL  := /(csrc|internal/topo|nccl/ncclog|bench/(report|stat|costmodel)|hanglab/(flight|timeline|pages))$$

# Of csrc these do; its C code is looked at by sanitizers of its own.
THREADS := ^Test(Flight|Series|Load)

# Tests of readers with very much or very bad input, minutes under the race detector. They run without it; the same goroutines see it with other input.
LONG    := ^(TestHostile|TestCut|TestRefused|TestGigabyteLine|TestHTMLFolds|TestDiagnoseHostile)$$

# Go turns cgo off without a word where it finds no compiler.
export CGO_ENABLED = 1

.PHONY: build test demo lint vet generate gpu-test rdma-lab bench-diagnose clean help need
.NOTPARALLEL:
.DEFAULT_GOAL := build

## build      bin/commprobe (default)
build: need
	@$(GO) build -buildvcs=false -trimpath -ldflags "-X main.version=$(VERSION)" -o bin/commprobe ./cmd/commprobe
	@echo "built bin/commprobe $(VERSION)"

need:
	@test -x "$(GO)" || { echo "Go 1.26 or newer is needed: https://go.dev/dl" >&2; exit 3; }
	@scripts/need.sh $(THINGS)

## demo       a sweep on the GPUs of this machine, or without any on its CPU: table, curve, files in out/
demo: build
	@mkdir -p out
	bin/commprobe sweep -b 8 -e 16M --json out/demo.json --csv out/demo.csv --plot out/demo.png --plot - --force
	@echo && echo "Written:" && ls -sh1 out/demo.json out/demo.csv out/demo.png

## test       every test of this machine: vet, format, race detector, and the packages without cgo once more without it
test: THINGS += tsan setarch clang-16 pip ip
test: need vet
	@test -n "$(NO_CGO)"
	CGO_ENABLED=0 $(GO) test $(NO_CGO)
	$(GO) test -vet=off -timeout 10m ./csrc
	$(GO) test -vet=off -timeout 10m -run '^TestExplain' ./bench
	$(GO) test -vet=off -timeout 10m -run '^TestHangAll64|^TestDiagnoseHostile' ./cmd/commprobe
	$(GO) test -race -vet=off -timeout 10m -run '$(THREADS)' ./csrc
	$(GO) test -race -vet=off -timeout 15m -skip '$(LONG)' $$($(GO) list ./... | grep -vE '$(SERIAL)')

## lint       format, vet, and the rules of the house (tidy_test.go)
lint: need vet
	$(GO) test .

vet:
	@bad=$$("$$($(GO) env GOROOT)/bin/gofmt" -l *.go */) && test -z "$$bad" || { echo "gofmt -w is needed:" $$bad >&2; exit 1; }
	$(GO) vet ./...

## generate   rebuild what is generated and committed: the PTX of the GPU kernels (clang-16)
generate: THINGS += clang-16
generate: need
	$(GO) generate ./...

## gpu-test   test binaries in bin/gpu; runs them if this machine has a GPU
gpu-test: build
	@rm -rf bin/gpu && mkdir -p bin/gpu
	$(GO) test -c -vet=off -ldflags "-s -w" -o bin/gpu/ $(GPU_PKG:%=./%)
	@if [ -e /dev/nvidia0 ] || nvidia-smi -L >/dev/null 2>&1; then scripts/gpu-test.sh; else \
		echo "No GPU here. On a machine that has one (Go is not needed): bring this tree with bin/, then scripts/gpu-test.sh"; fi

## rdma-lab   two virtual machines with soft-RoCE, no hardware needed: our tests and perftest between them; results in out/rdma-lab
rdma-lab: THINGS += rdma-lab
rdma-lab: build
	@rm -rf bin/rdma-lab && mkdir -p bin/rdma-lab
	$(GO) test -c -vet=off -o bin/rdma-lab/ $(addprefix ./,$(wildcard ibverbs rdma))
	@status=0; scripts/rdma-lab.sh run --cpus 2 --nics 2 --out out/rdma-lab --timeout 900 -- check.sh || status=$$?; \
	for host in a b; do echo "== host $$host" && cat out/rdma-lab/$$host.txt; done; exit $$status

# Dumps are written by one process and read by another, so that the memory that is printed is the diagnosis's own.
BENCH_RANKS   ?= 1024
BENCH_ENTRIES ?= 2000
BENCH_DIR     ?= out/bench-diagnose-$(BENCH_RANKS)x$(BENCH_ENTRIES)
BENCH_TEST     = $(GO) test -vet=off -count=1 -timeout 10m -v -run '^TestScale$$' ./hanglab/diagnose -args -scale.dir '$(abspath $(BENCH_DIR))' -scale.ranks $(BENCH_RANKS) -scale.entries $(BENCH_ENTRIES)

## bench-diagnose  time and memory of diagnosing BENCH_RANKS (1024) dumps of BENCH_ENTRIES (2000); FR_TRACE=command compares with PyTorch's fr_trace
bench-diagnose: need
	@test -d '$(BENCH_DIR)' || $(BENCH_TEST) -scale.write
	@$(BENCH_TEST)

## clean      remove what make made; results in out/ stay but for the demo's
clean:
	rm -rf bin out/demo.json out/demo.csv out/demo.png

## help       this list
help:
	@sed -n 's/^## /make /p' Makefile
