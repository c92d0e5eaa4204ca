package rig

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/ledger"
)

// Leftovers lists what a Runtime root holds that should be gone once no
// workspace is kept and nothing runs: everything but the cache's mirrors and
// complete pristine trees, each with the empty directory of its holders. An
// absent root has none.
func Leftovers(root string) ([]string, error) {
	if _, err := os.Lstat(root); os.IsNotExist(err) {
		return nil, nil
	}
	var found []string
	for _, dir := range []string{"execution-workspaces", "workers", "tmp/trash", "tmp"} {
		for _, n := range names(filepath.Join(root, dir)) {
			if dir != "tmp" || n != "trash" {
				found = append(found, dir+"/"+n)
			}
		}
	}
	for _, n := range names(filepath.Join(root, "config-bundles")) {
		if strings.HasPrefix(n, "cb-") {
			found = append(found, "config-bundles/"+n)
		}
	}
	for _, repo := range names(filepath.Join(root, "repository-cache/git")) {
		found = append(found, cacheLeftovers(root, repo)...)
	}
	for _, set := range append(pathsIn(root, "build-cache/deps"), pathsIn(root, "build-cache/work")...) {
		found = append(found, sharedLeftovers(root, set)...)
	}
	groups, err := workerGroups(root)
	if err != nil {
		return nil, err
	}
	for _, g := range groups {
		found = append(found, "control group "+g)
	}
	held, err := Held(root)
	if err != nil {
		return nil, err
	}
	for _, h := range held {
		found = append(found, fmt.Sprintf("ledger: %s %s of %s", h.Resource.Kind, h.Resource.Path, h.Resource.Owner))
	}
	return found, nil
}

// cacheLeftovers looks at what allocations hold in one repository's cache, and
// at half-made parts of it.
func cacheLeftovers(root, repo string) []string {
	dir := filepath.Join("repository-cache/git", repo)
	if strings.HasPrefix(repo, ".") {
		return []string{dir}
	}
	var found []string
	for _, n := range names(filepath.Join(root, dir)) {
		if strings.HasPrefix(n, ".tmp-") {
			found = append(found, dir+"/"+n)
		}
	}
	for _, sub := range []string{"holds", "pending", "collected", "bare.git/worktrees", "bare.git/refs/yoi/pins", "bare.git/refs/yoi/collected"} {
		for _, n := range names(filepath.Join(root, dir, sub)) {
			found = append(found, dir+"/"+sub+"/"+n)
		}
	}
	for _, n := range names(filepath.Join(root, dir)) {
		if strings.HasPrefix(n, ".quarantine-") {
			found = append(found, dir+"/"+n)
		}
	}
	trees := filepath.Join(dir, "trees")
	for _, n := range names(filepath.Join(root, trees)) {
		tree, isHolders := strings.CutSuffix(n, ".use")
		if _, err := os.Lstat(filepath.Join(root, trees, tree)); err != nil || strings.HasPrefix(n, ".") {
			found = append(found, trees+"/"+n)
		} else if b, err := os.ReadFile(filepath.Join(root, trees, n)); err == nil && strings.HasSuffix(n, ".json") && strings.Contains(string(b), `"snapshot":true`) {
			found = append(found, trees+"/"+n+": a snapshot that nobody holds")
		} else if isHolders {
			for _, holder := range names(filepath.Join(root, trees, n)) {
				found = append(found, trees+"/"+n+"/"+holder)
			}
		}
	}
	if b, err := os.ReadFile(filepath.Join(root, dir, "bare.git/packed-refs")); err == nil && strings.Contains(string(b), " refs/yoi/pins/") {
		found = append(found, dir+"/bare.git/packed-refs: a pin")
	}
	return found
}

// sharedLeftovers are what a set of shared caches holds beside complete entries.
func sharedLeftovers(root, set string) (found []string) {
	for _, n := range names(filepath.Join(root, set)) {
		entry := strings.TrimSuffix(strings.TrimSuffix(n, ".json"), ".lock")
		for _, part := range []string{entry, entry + ".json", entry + ".lock"} {
			if _, err := os.Lstat(filepath.Join(root, set, part)); err != nil {
				found = append(found, set+"/"+n+": an entry without "+part)
			}
		}
	}
	return found
}

// pathsIn are the names in a directory, with its own in front.
func pathsIn(root, dir string) (out []string) {
	for _, n := range names(filepath.Join(root, dir)) {
		out = append(out, dir+"/"+n)
	}
	return out
}

func names(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

// Held is what the ledger's streams hold.
func Held(root string) ([]ledger.Held, error) {
	dir, err := os.Open(filepath.Join(root, "ledger"))
	if err != nil {
		if os.IsNotExist(err) {
			return nil, nil
		}
		return nil, err
	}
	defer dir.Close()
	state, err := ledger.Scan(context.Background(), dir)
	if err != nil {
		return nil, err
	}
	return state.Held, nil
}

// Clean fails the test if a Runtime root holds a leftover or its ledger's
// chain is broken.
func Clean(t testing.TB, root string) {
	t.Helper()
	found, err := Leftovers(root)
	if err != nil {
		t.Errorf("looking for leftovers: %v", err)
	}
	for _, f := range found {
		t.Errorf("left behind: %s", f)
	}
	Chained(t, root)
}

// Chained fails the test unless every stream of the ledger is whole.
func Chained(t testing.TB, root string) {
	t.Helper()
	dir, err := os.Open(filepath.Join(root, "ledger"))
	if err != nil {
		if !os.IsNotExist(err) {
			t.Error(err)
		}
		return
	}
	defer dir.Close()
	rep, err := ledger.Verify(context.Background(), dir)
	if err != nil {
		t.Errorf("verifying the ledger: %v", err)
		return
	}
	if !rep.OK {
		t.Errorf("the ledger is broken: %+v", rep.Streams)
	}
}

// Names lists everything below a Runtime root with its type and mode, apart
// from the ledger and the database, which only grow, and the probe's answer.
func Names(t testing.TB, root string) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			if os.IsNotExist(err) && path == root {
				return nil
			}
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		switch {
		case rel == "ledger" && d.IsDir():
			return filepath.SkipDir
		case strings.HasPrefix(rel, "runtime.db"), rel == "probe.json", rel == "runtime-id":
			return nil
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		out = append(out, fmt.Sprintf("%v %q", info.Mode(), rel))
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// Difference is what b has and a lacks ("+"), and the reverse ("-").
func Difference(a, b []string) []string {
	count := map[string]int{}
	for _, s := range a {
		count[s]--
	}
	for _, s := range b {
		count[s]++
	}
	var out []string
	for _, l := range [][]string{a, b} {
		for _, s := range l {
			switch {
			case count[s] > 0:
				out = append(out, "+ "+s)
			case count[s] < 0:
				out = append(out, "- "+s)
			}
			count[s] = 0
		}
	}
	return out
}
