package gitcache

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestFullDisk(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoFilesCheckedOut(t, 800)
	for _, mib := range []int{1, 2} { // too small for the mirror; for the tree as well
		root := testenv.TmpFS(t, mib)
		j := &journal{held: map[string]Resource{}}
		c, err := Open(Options{Root: root, Ledger: j})
		if err != nil {
			t.Fatal(err)
		}
		f := &fixture{Cache: c, t: t, journal: j, root: root}
		p, _, err := f.Resolve(t.Context(), f.source(repo.Dir), policy.Selector{}, ResolveOptions{})
		if err == nil {
			_, _, err = f.Pristine(t.Context(), p)
		}
		wantCode(t, err, policy.CodeDiskFull)
		noLeftovers(t, f)
	}
}

// On btrfs a tree is a read-only subvolume: it must still be renamed, marked,
// found, and removed.
func TestTreesAsSubvolumes(t *testing.T) {
	testenv.Root(t)
	root := testenv.FS(t, "btrfs", 256)
	btrfs := func(args ...string) error {
		out, err := exec.Command("btrfs", args...).CombinedOutput()
		if err != nil {
			t.Logf("btrfs %q: %s", args, out)
		}
		return err
	}
	j := &journal{held: map[string]Resource{}}
	c, err := Open(Options{
		Root: root, Ledger: j,
		MakeTop:   func(_ context.Context, dir string) error { return btrfs("subvolume", "create", dir) },
		SealTop:   func(_ context.Context, dir string) error { return btrfs("property", "set", dir, "ro", "true") },
		RemoveTop: func(_ context.Context, dir string) error { return btrfs("subvolume", "delete", dir) },
	})
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{Cache: c, t: t, journal: j, root: root}
	src := f.source(testenv.RepoSmall(t).Dir)
	p := f.resolve(src, "HEAD")
	tree, _ := f.pristine(p)
	if err := os.WriteFile(f.path(tree.RelPath+"/x"), nil, 0o644); err == nil {
		t.Error("the tree is not read-only")
	}
	snapshot := filepath.Join(root, "ws")
	if err := btrfs("subvolume", "snapshot", f.path(tree.RelPath), snapshot); err != nil {
		t.Fatal(err)
	}
	top, err := os.Open(snapshot)
	if err != nil {
		t.Fatal(err)
	}
	defer top.Close()
	if err := f.WriteGitDir(t.Context(), top, p, GitDirOptions{}); err != nil {
		t.Fatal(err)
	}
	if reads := contentReads(t, f, p, snapshot); len(reads) != 0 {
		t.Errorf("reads %q", reads)
	}
	tree.Close()
	if rep, err := f.Evict(t.Context(), 0, false); err != nil || len(rep.Removed) != 1 {
		t.Errorf("%+v, %v", rep, err)
	}
	noLeftovers(t, f)
}

func TestClosedEnvironment(t *testing.T) {
	f := newFixture(t)
	for _, k := range []string{"GIT_DIR", "GIT_SSH_COMMAND", "GIT_EXEC_PATH", "GIT_TEMPLATE_DIR", "LD_PRELOAD", "GIT_CONFIG_PARAMETERS", "GIT_TRACE", "XDG_CONFIG_HOME", "SECRET"} {
		t.Setenv(k, "/planted")
	}
	t.Setenv("SSH_AUTH_SOCK", "/agent")
	for _, network := range []bool{false, true} {
		env := f.environment(command{network: network})
		for _, kv := range env {
			if strings.Contains(kv, "planted") {
				t.Errorf("inherited: %s", kv)
			}
		}
		for _, want := range []string{"GIT_CONFIG_NOSYSTEM=1", "GIT_CONFIG_GLOBAL=/dev/null", "GIT_TERMINAL_PROMPT=0", "GIT_NO_REPLACE_OBJECTS=1", "GIT_NO_LAZY_FETCH=1", "LC_ALL=C"} {
			if !slices.Contains(env, want) {
				t.Errorf("%s is missing", want)
			}
		}
		if slices.Contains(env, "SSH_AUTH_SOCK=/agent") != network {
			t.Error("the ssh agent goes with the network, and only with it")
		}
	}
	args := f.arguments(command{args: []string{"x"}})
	for _, want := range []string{"protocol.allow=never", "protocol.https.allow=always", "core.hooksPath=/dev/null", "core.fsmonitor=false", "credential.helper=", "transfer.fsckObjects=true"} {
		if !slices.Contains(args, want) {
			t.Errorf("%s is missing", want)
		}
	}
	if !strings.Contains(strings.Join(f.environment(command{}), "\n"), "StrictHostKeyChecking=yes") {
		t.Error("host keys are not checked")
	}
}

func TestProtocolSubset(t *testing.T) {
	c, err := Open(Options{Root: t.TempDir(), AllowProtocols: []string{"https"}})
	if err != nil {
		t.Fatal(err)
	}
	src, err := ParseSource(testenv.RepoSmall(t).Dir, "/")
	if err != nil {
		t.Fatal(err)
	}
	_, err = c.Fetch(t.Context(), src)
	wantCode(t, err, policy.CodeProtocolRefused)
	if _, err := Open(Options{Root: t.TempDir(), AllowProtocols: []string{"ext"}}); err == nil {
		t.Error("ext can be allowed")
	}
}

// git's own message has no errno when the disk fills in the middle of a file.
func TestFullDiskDuringCheckout(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	files := map[string]*testenv.Entry{}
	for i := range 8 {
		b := make([]byte, 1<<20)
		_, _ = rand.Read(b)
		files[fmt.Sprint(i)] = &testenv.Entry{Data: string(b)}
	}
	repo = testenv.Commit(t, repo, "big", files)
	for _, kind := range []string{"tree", "worktree"} {
		t.Run(kind, func(t *testing.T) {
			f := newFixture(t)
			src := f.source(repo.Dir)
			p := f.resolve(src, "HEAD")
			small := testenv.TmpFS(t, 5)
			var err error
			if kind == "tree" {
				run(t, "mount", "--bind", small, f.path("repository-cache/git/small/trees"))
				defer run(t, "umount", f.path("repository-cache/git/small/trees"))
				_, _, err = f.Pristine(t.Context(), p)
			} else {
				_, _, err = f.AddWorktree(t.Context(), p, "ws-1", filepath.Join(small, "w"))
			}
			wantCode(t, err, policy.CodeDiskFull)
			if exists(f.bare("small") + "/worktrees") {
				t.Error("an entry of a failed worktree is left")
			}
			noLeftovers(t, f)
		})
	}
}
