# Every target works from a fresh clone; `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

GO ?= go
PKGS ?= ./...
# Two test binaries at a time: the tests measure and mount, and share the disk.
TEST_FLAGS ?= -p 2 -timeout 25m
FUZZTIME ?= 10s
export CGO_ENABLED ?= 1

# Without VCS stamps, which fail in a clone that another user owns.
STATIC := -trimpath -buildvcs=false -tags netgo,osusergo -ldflags '-s -w'
# libseccomp is C; linked in, so that the binaries need nothing else to run.
# Without HTTP/2, which neither a unix socket nor a store of snapshots needs.
STATIC_CGO := -trimpath -buildvcs=false -tags netgo,osusergo,nethttpomithttp2 -ldflags '-s -w -linkmode external -extldflags "-static"'

# What `yoi version` says. A package needs a number to begin with.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
DEB_VERSION ?= 0.1.0+git$(shell git log -1 --format=%cd.%h --date=format:%Y%m%d 2>/dev/null || date +%Y%m%d)
# The same sources make the same package.
export SOURCE_DATE_EPOCH ?= $(shell git log -1 --format=%ct 2>/dev/null || date +%s)
static = $(subst -s -w,-s -w -X yoi.dev/yoi-runtime/runtime.Version=$(VERSION),$(1))

.PHONY: help
help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

.PHONY: setup
setup: ## install the Debian packages that building and testing need, fetch the tests' kernel (root)
	@scripts/setup

.PHONY: build
build: ## bin/yoi, bin/yoi-runtimed, bin/yoi-helper, bin/yoi-layers, bin/yoi-s3, bin/yoi-egress, bin/yoi-backend: static, nothing else needed to run them
	@mkdir -p bin
	CGO_ENABLED=0 $(GO) build $(STATIC) -o bin/yoi-helper ./cmd/yoi-helper
	CGO_ENABLED=0 $(GO) build $(STATIC) -o bin/yoi-layers ./cmd/yoi-layers
	CGO_ENABLED=0 $(GO) build $(STATIC) -o bin/yoi-s3 ./cmd/yoi-s3
	CGO_ENABLED=0 $(GO) build $(STATIC) -o bin/yoi-egress ./cmd/yoi-egress
	CGO_ENABLED=0 $(GO) build $(call static,$(STATIC)) -o bin/yoi-backend ./cmd/yoi-backend
	CGO_ENABLED=1 $(GO) build $(call static,$(STATIC_CGO)) -o bin/yoi-runtimed ./cmd/yoi-runtimed
	CGO_ENABLED=1 $(GO) build $(call static,$(STATIC_CGO)) -o bin/yoi ./cmd/yoi

.PHONY: web
web: ## check and compile the Backend's scripts into backend/assets (Node 18 or newer)
	@scripts/setup
	@cd backend/web && npm run --silent check && npm run --silent build

.PHONY: demo-web
demo-web: build ## a Runtime and a Backend with this repository as the example; prints the address
	@scripts/demo-web

.PHONY: man
man: ## dist/man: manual pages, of the commands' own help
	@rm -rf dist/man && mkdir -p dist/man
	@for c in yoi yoi-runtimed yoi-helper yoi-backend; do $(GO) run -tags manpage ./cmd/$$c manpages dist/man; done

DESTDIR ?=
PREFIX ?= /usr

.PHONY: install
install: build man ## the programs, their manual, completions and systemd units, below DESTDIR
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin lib/systemd/system lib/systemd/user lib/systemd/system-preset lib/systemd/catalog lib/sysusers.d lib/tmpfiles.d \
		share/man/man1 share/man/man8 share/bash-completion/completions share/zsh/vendor-completions share/fish/vendor_completions.d share/yoi-runtime share/doc/yoi-runtime/examples) $(DESTDIR)/etc/yoi
	install -m 755 $(addprefix bin/,yoi yoi-runtimed yoi-helper yoi-layers yoi-s3 yoi-egress yoi-backend) $(DESTDIR)$(PREFIX)/bin
	install -m 644 systemd/*.service systemd/*.socket systemd/*.timer systemd/*.slice $(DESTDIR)$(PREFIX)/lib/systemd/system
	install -m 644 systemd/user/* $(DESTDIR)$(PREFIX)/lib/systemd/user
	install -m 644 systemd/yoi.preset $(DESTDIR)$(PREFIX)/lib/systemd/system-preset/60-yoi.preset
	install -m 644 systemd/yoi.catalog $(DESTDIR)$(PREFIX)/lib/systemd/catalog/yoi.catalog
	install -m 644 systemd/yoi-alerts.yaml systemd/yoi-dashboard.json $(DESTDIR)$(PREFIX)/share/yoi-runtime
	install -m 644 systemd/yoi.sysusers $(DESTDIR)$(PREFIX)/lib/sysusers.d/yoi.conf
	install -m 644 systemd/yoi.tmpfiles $(DESTDIR)$(PREFIX)/lib/tmpfiles.d/yoi.conf
	install -m 644 dist/man/*.1 $(DESTDIR)$(PREFIX)/share/man/man1
	install -m 644 dist/man/*.8 $(DESTDIR)$(PREFIX)/share/man/man8
	gzip -9nf $(DESTDIR)$(PREFIX)/share/man/man[18]/yoi*.[18]
	bin/yoi completion bash >$(DESTDIR)$(PREFIX)/share/bash-completion/completions/yoi
	bin/yoi completion zsh >$(DESTDIR)$(PREFIX)/share/zsh/vendor-completions/_yoi
	bin/yoi completion fish >$(DESTDIR)$(PREFIX)/share/fish/vendor_completions.d/yoi.fish
	install -m 644 README.md ARCHITECTURE.md docs/*.md $(DESTDIR)$(PREFIX)/share/doc/yoi-runtime
	awk '/^```/ {n++; next} n == 1 {print $$0 == "" ? "" : "#" $$0}' docs/configuration.md >$(DESTDIR)$(PREFIX)/share/doc/yoi-runtime/examples/config.toml
	awk '/^```/ {n++; next} n == 1' docs/backend.md >$(DESTDIR)$(PREFIX)/share/doc/yoi-runtime/examples/backend.toml

.PHONY: deb
deb: ## dist/yoi-runtime_*.deb: a Debian package
	@rm -rf dist/deb dist/yoi-runtime_*.deb
	@$(MAKE) --no-print-directory install DESTDIR=dist/deb VERSION=$(DEB_VERSION)
	@scripts/deb dist/deb $(DEB_VERSION)

.PHONY: demo
demo: setup build ## the main job on a real repository, from nothing to nothing
	@scripts/demo

.PHONY: test
test: vet ## everything: all tests, as root if you are root
	@$(GO) run ./scripts/gotest $(TEST_FLAGS) $(PKGS)

.PHONY: unit
unit: ## the tests that need no root
	@YOI_TESTENV_NO_ROOT=1 $(GO) run ./scripts/gotest -short $(TEST_FLAGS) $(PKGS)

.PHONY: root-test
root-test: ## all tests, with root by sudo; a test that cannot have root fails
	@$(if $(filter 0,$(shell id -u)),,sudo --preserve-env=PATH,HOME,GOPATH,GOFLAGS) env CI=true $(GO) run ./scripts/gotest $(TEST_FLAGS) $(PKGS)

.PHONY: attack
attack: ## only the attacks: what a hostile Worker or caller tries (root)
	@$(GO) run ./scripts/gotest $(TEST_FLAGS) -run Attack $(PKGS)

.PHONY: bench
bench: setup build ## the table of the README: measured beside bubblewrap, runc, git and cp (root)
	@$(GO) run ./tests/bench

.PHONY: fuzz
fuzz: ## every fuzz target for FUZZTIME (10s)
	@scripts/fuzz $(FUZZTIME)

.PHONY: generate
generate: ## make the generated files anew: seccomp filters, their table
	$(GO) generate ./...

.PHONY: vet
vet:
	@$(GO) vet $(PKGS)

.PHONY: lint
lint: ## gofmt, go vet, staticcheck
	@scripts/lint

.PHONY: clean
clean: ## remove what the targets built
	rm -rf bin dist
