package policy

import (
	"path"
	"slices"
	"strings"
)

// ArtifactPolicy says which regenerable artifacts of a working tree are left
// out when a working tree (not a clean point) is the source. Tracked files are
// never left out.
//
// A pattern is path.Match's. With a slash before its end it is compared to the
// whole path below the repository's top, without one to the last name of any
// path; with a slash at its end it is for directories only. What lies in a
// directory that is left out goes with it, unless it is tracked.
type ArtifactPolicy struct {
	// Exclude is what to leave out. The word "default" stands for DefaultArtifacts,
	// and is what an empty list means; the word "none" for nothing.
	Exclude []string `json:"exclude,omitempty"`
	// Keep is what Exclude does not apply to, beside manifests and lockfiles.
	Keep []string `json:"keep,omitempty"`
}

const maxArtifactPatterns = 1000

// Validate checks that the patterns are relative and well formed.
func (p ArtifactPolicy) Validate() error {
	const op = "policy.artifacts"
	if len(p.Exclude)+len(p.Keep) > maxArtifactPatterns {
		return Errorf(CodePolicyInvalid, op, "more than %d artifact patterns", maxArtifactPatterns)
	}
	for _, e := range slices.Concat(p.Exclude, p.Keep) {
		clean := strings.TrimSuffix(e, "/")
		if _, err := path.Match(clean, "x"); err != nil || clean == "" || len(e) > 4096 || strings.ContainsRune(e, 0) ||
			path.Clean(clean) != clean || path.IsAbs(clean) || clean == "." || clean == ".." || strings.HasPrefix(clean, "../") {
			return Errorf(CodePolicyInvalid, op, "%q is not a relative pattern", Printable(e))
		}
	}
	return nil
}

// DefaultArtifacts are the directories and files that tools make again from
// what is tracked: dependencies, build results, caches, and what a desktop drops.
func DefaultArtifacts() []string {
	return []string{
		// JavaScript
		"node_modules/", "bower_components/", "jspm_packages/", ".yarn/cache/", ".yarn/unplugged/", ".pnpm-store/", ".npm/",
		".next/", ".nuxt/", ".output/", ".svelte-kit/", ".astro/", ".angular/", ".docusaurus/", ".expo/", ".vite/",
		".turbo/", ".nx/cache/", ".parcel-cache/", ".rollup.cache/", ".webpack/", ".eslintcache", "*.tsbuildinfo", "storybook-static/",
		// Python
		".venv/", "venv/", "__pycache__/", "*.py[cod]", ".tox/", ".nox/", ".mypy_cache/", ".pytest_cache/", ".ruff_cache/",
		".hypothesis/", ".ipynb_checkpoints/", ".eggs/", "*.egg-info/", "htmlcov/",
		// Rust, C, Zig, Haskell, Swift, .NET's come under build results
		"target/", "cmake-build-*/", "CMakeFiles/", ".zig-cache/", "zig-cache/", "zig-out/", "dist-newstyle/", ".stack-work/", ".build/", "DerivedData/",
		// JVM, Android, Dart, Elixir, Ruby, Nix, Terraform
		".gradle/", ".kotlin/", ".bsp/", ".metals/", ".bloop/", ".dart_tool/", "_build/", ".elixir_ls/", ".bundle/", ".direnv/", ".terraform/", ".serverless/", "Pods/",
		// build results, coverage and caches of any language
		"build/", "dist/", "out/", "coverage/", ".coverage", ".nyc_output/", ".cache/", ".sass-cache/", ".ccache/", "bazel-*",
		// desktops
		".DS_Store", "Thumbs.db",
	}
}

// manifests are kept wherever a pattern names them: what dependencies are made
// of again.
var manifests = []string{
	"package.json", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock", "pnpm-lock.yaml", "pnpm-workspace.yaml", "bun.lock", "bun.lockb",
	"deno.json", "deno.lock", "lerna.json", "nx.json", "turbo.json",
	"pyproject.toml", "poetry.lock", "uv.lock", "pdm.lock", "Pipfile", "Pipfile.lock", "requirements*.txt", "setup.py", "setup.cfg", "environment.yml", "conda-lock.yml",
	"Cargo.toml", "Cargo.lock", "go.mod", "go.sum", "go.work", "go.work.sum", "CMakeLists.txt", "conanfile.txt", "conan.lock", "vcpkg.json",
	"build.zig", "build.zig.zon", "cabal.project", "stack.yaml", "stack.yaml.lock", "Package.swift", "Package.resolved", "Podfile", "Podfile.lock",
	"pom.xml", "build.gradle", "build.gradle.kts", "settings.gradle", "settings.gradle.kts", "gradle.lockfile", "libs.versions.toml", "build.sbt",
	"packages.lock.json", "paket.dependencies", "paket.lock", "pubspec.yaml", "pubspec.lock", "mix.exs", "mix.lock", "rebar.config", "rebar.lock",
	"Gemfile", "Gemfile.lock", "composer.json", "composer.lock", "flake.nix", "flake.lock", ".terraform.lock.hcl",
}

// Artifacts decides by an ArtifactPolicy which paths are left out.
type Artifacts struct{ exclude, keep patterns }

// patterns has plain last names, which most patterns are, in a map: true for
// directories only.
type patterns struct {
	names map[string]bool
	globs []pattern
}

type pattern struct {
	glob    string
	dirOnly bool
	whole   bool
}

// Compile prepares a valid policy.
func (p ArtifactPolicy) Compile() Artifacts {
	exclude := p.Exclude
	if len(exclude) == 0 {
		exclude = []string{"default"}
	}
	var all []string
	for _, e := range exclude {
		switch e {
		case "default":
			all = append(all, DefaultArtifacts()...)
		case "none":
		default:
			all = append(all, e)
		}
	}
	return Artifacts{exclude: compile(all), keep: compile(slices.Concat(manifests, p.Keep))}
}

func compile(globs []string) patterns {
	ps := patterns{names: make(map[string]bool, len(globs))}
	for _, g := range globs {
		clean := strings.TrimSuffix(g, "/")
		p := pattern{glob: clean, dirOnly: clean != g, whole: strings.Contains(clean, "/")}
		if p.whole || strings.ContainsAny(clean, `*?[\`) {
			ps.globs = append(ps.globs, p)
		} else if only, ok := ps.names[clean]; !ok || only {
			ps.names[clean] = p.dirOnly
		}
	}
	return ps
}

// Excludes reports whether the policy leaves out the path rel itself. Whether a
// directory above it is left out is the caller's to know.
func (a Artifacts) Excludes(rel string, isDir bool) bool {
	return a.exclude.match(rel, isDir) && !a.keep.match(rel, isDir)
}

func (ps patterns) match(rel string, isDir bool) bool {
	base := path.Base(rel)
	if dirOnly, ok := ps.names[base]; ok && (isDir || !dirOnly) {
		return true
	}
	for _, p := range ps.globs {
		name := base
		if p.whole {
			name = rel
		}
		if p.dirOnly && !isDir {
			continue
		}
		if ok, _ := path.Match(p.glob, name); ok { // Validate has refused malformed ones
			return true
		}
	}
	return false
}
