package rig

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// Way is what a user types for a workspace by one strategy.
type Way struct {
	Strategy policy.StrategyName
	// ID is the repository's, as the Worker's directory is called.
	ID   string
	args []string
}

func (w Way) String() string { return string(w.Strategy) }

// Run is the arguments of a `yoi run`, with more flags and the command behind.
func (w Way) Run(more ...string) []string {
	return append(append([]string{"run", "--strategy", string(w.Strategy)}, w.args...), more...)
}

// By is the same by another strategy.
func (w Way) By(s policy.StrategyName) Way {
	w.Strategy = s
	return w
}

// Cloning is the configuration of an external command that does it right.
const Cloning = "[external]\ncommand = [\"/usr/bin/env\", \"cp\", \"-a\", \"--reflink=auto\", \"/run/yoi/source\", \"tree\"]\n"

// Ways are all strategies by which a place gives the whole of repo: those that
// need nothing, git_sparse with a scope that names every directory, external with
// the plainest command, and remote_snapshot out of a store beside the Runtime root.
// It writes y's config.toml.
func (p Place) Ways(t testing.TB, y Yoi, repo testenv.Repo) []Way {
	t.Helper()
	var out []Way
	id, plain := filepath.Base(repo.Dir), []string{"--repo", repo.Dir}
	for _, s := range Strategies(p.FS) {
		out = append(out, Way{s, id, plain})
	}
	sparse := plain
	dirs := repo.Git(t, "-c", "safe.directory=*", "ls-tree", "-z", "-d", "--name-only", repo.Commit)
	for dir := range strings.SplitSeq(strings.TrimRight(dirs, "\x00"), "\x00") {
		sparse = append(sparse, "--scope", dir)
	}
	Configure(t, y.Root, p.UID, Cloning)
	return append(out, Way{policy.StrategyGitSparse, id, sparse}, Way{policy.StrategyExternal, id, plain}, p.remote(t, y, repo))
}

// remote exports repo to a store, from another Runtime root.
func (p Place) remote(t testing.TB, y Yoi, repo testenv.Repo) Way {
	t.Helper()
	store := filepath.Join(p.Dir, "store")
	if err := os.MkdirAll(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(store, p.UID, p.UID); err != nil {
		t.Fatal(err)
	}
	y.Root = filepath.Join(p.Dir, "exporter")
	y.OK(t, "repo", "add", "--id", "exported", repo.Dir)
	var s struct {
		Digest string `json:"digest"`
	}
	if err := json.Unmarshal([]byte(y.OK(t, "snapshot", "export", "exported", "--to", store, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	y.OK(t, "gc")
	Clean(t, y.Root)
	return Way{policy.StrategyRemoteSnapshot, filepath.Base(store), []string{"--repo", "snapshot+file://" + store, "--rev", "snapshot:" + s.Digest}}
}
