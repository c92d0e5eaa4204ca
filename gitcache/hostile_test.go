package gitcache

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

// plant gives the repository every way we know by which git runs a command
// that a repository names. Each would create the canary.
func plant(t *testing.T, repo testenv.Repo, canary string) {
	t.Helper()
	script := filepath.Join(repo.Dir, ".git/evil")
	write(t, script, "#!/bin/sh\necho \"$0 $@\" >>'"+canary+"'\ncat\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, hook := range []string{"post-index-change", "reference-transaction", "post-checkout", "pre-auto-gc", "fsmonitor-watchman", "pre-commit", "proc-receive"} {
		link := filepath.Join(repo.Dir, ".git/hooks", hook)
		if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
			t.Fatal(err)
		}
		_ = os.Remove(link)
		if err := os.Symlink(script, link); err != nil {
			t.Fatal(err)
		}
	}
	for _, kv := range [][2]string{
		{"core.fsmonitor", script}, {"core.hooksPath", filepath.Join(repo.Dir, ".git/hooks")}, {"core.sshCommand", script},
		{"core.alternateRefsCommand", script}, {"core.pager", script}, {"core.editor", script}, {"core.askPass", script},
		{"core.gitProxy", script}, {"filter.evil.clean", script}, {"filter.evil.smudge", script}, {"filter.evil.process", script},
		{"filter.evil.required", "true"}, {"diff.evil.command", script}, {"diff.evil.textconv", script}, {"diff.external", script},
		{"merge.evil.driver", script}, {"credential.helper", "!" + script}, {"uploadpack.packObjectsHook", script},
		{"remote.origin.url", "ext::" + script}, {"remote.origin.uploadpack", script}, {"remote.origin.promisor", "true"},
		{"remote.yoi-source.uploadpack", script}, {"protocol.ext.allow", "always"}, {"alias.status", "!" + script},
		{"alias.rev-parse", "!" + script}, {"gpg.program", script}, {"log.showSignature", "true"}, {"url." + script + ".insteadOf", "/"},
		{"submodule.recurse", "true"}, {"interactive.diffFilter", script}, {"trailer.x.command", script},
	} {
		repo.Git(t, "config", "--file", filepath.Join(repo.Dir, ".git/config"), kv[0], kv[1])
	}
	write(t, filepath.Join(repo.Dir, ".git/info/attributes"), "* filter=evil diff=evil merge=evil\n")
	// A nested repository with the same, untracked and as a submodule would be.
	nested := filepath.Join(repo.Dir, "nested")
	testenv.Git(t, "", "init", "--quiet", nested)
	testenv.Git(t, nested, "commit", "--quiet", "--allow-empty", "-m", "x")
	testenv.Git(t, nested, "config", "core.fsmonitor", script)
	write(t, filepath.Join(nested, "file"), "x")
}

func TestPlantedCommandsNeverRun(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "attributes", map[string]*testenv.Entry{".gitattributes": {Data: "* filter=evil diff=evil merge=evil\n"}})
	canary := filepath.Join(t.TempDir(), "canary")
	plant(t, repo, canary)
	stale(t, repo.Dir)
	write(t, filepath.Join(repo.Dir, "README.md"), "changed")

	// The canary sings for a git that is not closed.
	cmd := exec.Command("git", "-C", repo.Dir, "status")
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null")
	_ = cmd.Run()
	if !exists(canary) {
		t.Fatal("a plain git status runs nothing: the canary is no test")
	}
	os.Remove(canary)

	sources := []Source{f.source(repo.Dir)}
	u := f.source("file://" + repo.Dir)
	u.ID = "url"
	for _, src := range append(sources, u) {
		if src.isLocal() {
			wantCode(t, f.CheckClean(t.Context(), src), policy.CodeSourceDirty)
		}
		p := f.resolve(src, "HEAD~1")
		lost := repo.Git(t, "-c", "core.hooksPath=/dev/null", "rev-parse", "HEAD")
		f.resolve(src, "commit:"+lost[:9])
		if _, err := f.Fetch(t.Context(), src); err != nil {
			t.Fatal(err)
		}
		f.pristine(f.resolve(src, "HEAD"))
		if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
			t.Fatal(err)
		}
		if _, err := f.GC(t.Context(), src.ID, GCOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, _, err := f.AddWorktree(t.Context(), p, "ws-1", filepath.Join(t.TempDir(), "wt")); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(canary); err == nil {
			t.Fatalf("%s ran:\n%s", src.ID, b)
		}
	}
}

func TestSourceWithFIFOs(t *testing.T) {
	for _, name := range []string{"HEAD", "config", "packed-refs", "index", "shallow"} {
		repo := testenv.RepoSmall(t)
		path := filepath.Join(repo.Dir, ".git", name)
		os.Remove(path)
		if err := unix.Mkfifo(path, 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := ParseSource(repo.Dir, "/"); err == nil {
			t.Errorf("a FIFO as %s is taken", name)
		}
	}
}

// rawTree writes a tree object that git's own commands would refuse to make.
func rawTree(t *testing.T, dir string, entries ...string) string {
	t.Helper()
	var raw strings.Builder
	for i := 0; i < len(entries); i += 3 {
		oid := entries[i+2]
		raw.WriteString(entries[i] + " " + entries[i+1] + "\x00")
		for j := 0; j < len(oid); j += 2 {
			raw.WriteByte(unhex(oid[j])<<4 | unhex(oid[j+1]))
		}
	}
	cmd := exec.Command("git", "-C", dir, "hash-object", "-t", "tree", "-w", "--literally", "--stdin")
	cmd.Stdin = strings.NewReader(raw.String())
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(out))
}

func unhex(c byte) byte {
	if c >= 'a' {
		return c - 'a' + 10
	}
	return c - '0'
}

func TestHostileTrees(t *testing.T) {
	outside := t.TempDir()
	for name, build := range map[string]func(t *testing.T, dir, blob, link string) string{
		"dot git": func(t *testing.T, dir, blob, _ string) string {
			return rawTree(t, dir, "40000", ".git", rawTree(t, dir, "100755", "config", blob))
		},
		"case": func(t *testing.T, dir, blob, _ string) string {
			return rawTree(t, dir, "40000", ".GIT", rawTree(t, dir, "100755", "config", blob))
		},
		"ntfs": func(t *testing.T, dir, blob, _ string) string { return rawTree(t, dir, "100644", "git~1", blob) },
		"hfs":  func(t *testing.T, dir, blob, _ string) string { return rawTree(t, dir, "100644", ".g\u200cit", blob) },
		"dotdot": func(t *testing.T, dir, blob, _ string) string {
			return rawTree(t, dir, "40000", "..", rawTree(t, dir, "100644", "x", blob))
		},
		"slash":    func(t *testing.T, dir, blob, _ string) string { return rawTree(t, dir, "100644", "a/../../x", blob) },
		"absolute": func(t *testing.T, dir, blob, _ string) string { return rawTree(t, dir, "100644", outside+"/x", blob) },
		// A symbolic link and a directory of one name: files would be written through it.
		"link and directory": func(t *testing.T, dir, blob, link string) string {
			return rawTree(t, dir, "120000", "a", link, "40000", "a", rawTree(t, dir, "100644", "x", blob))
		},
		"directory and link": func(t *testing.T, dir, blob, link string) string {
			return rawTree(t, dir, "40000", "a", rawTree(t, dir, "100644", "x", blob), "120000", "a", link)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			repo := testenv.RepoSmall(t)
			src := f.source(repo.Dir)
			p := f.resolve(src, "HEAD")
			hash := func(text string) string {
				write(t, filepath.Join(outside, "..", "blob"), text)
				return repo.Git(t, "hash-object", "-w", filepath.Join(outside, "..", "blob"))
			}
			blob, link := hash("evil"), hash(outside)
			tree := build(t, repo.Dir, blob, link)
			commit := repo.Git(t, "commit-tree", "-m", "evil", tree)

			// The front door: fsck on fetch.
			sel := policy.Selector{Kind: policy.SelectCommit, Value: commit}
			_, _, err := f.Resolve(t.Context(), src, sel, ResolveOptions{})
			wantCode(t, err, policy.CodeObjectsInvalid)

			// Behind it, with the objects smuggled in: git's refusal to write.
			run(t, "cp", "-a", repo.Dir+"/.git/objects/.", f.path(f.ObjectsPath(p.RepositoryID)))
			p.CommitID, p.TreeID = commit, tree
			_, _, err = f.Pristine(t.Context(), p)
			if err == nil {
				// Only harmless outcomes may succeed: nothing outside, no git directory touched.
				t.Logf("%s is checked out", name)
			}
			if entries, _ := os.ReadDir(outside); len(entries) != 0 {
				t.Fatalf("written outside: %v", entries)
			}
			if name == "link and directory" || name == "directory and link" {
				return // git keeps the first of the two
			}
			wantCode(t, err, policy.CodeObjectsInvalid)
			if left, _ := filepath.Glob(f.path("repository-cache/git/small/trees/*")); len(left) > 1 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// CVE-2025-48384: a carriage return at the end of a submodule's path. Nothing
// is recursed into, so the path is only a directory.
func TestSubmoduleTricks(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSubmodules(t)
	p := f.resolve(f.source(repo.Dir), "HEAD")
	tree, warnings := f.pristine(p)
	if !hasCode(warnings, policy.CodeSubmodulesNotFilled) {
		t.Errorf("warnings %v", warnings)
	}
	for _, sub := range []string{"vendor/lib", "sub"} {
		if entries, err := os.ReadDir(f.path(tree.RelPath + "/" + sub)); err != nil || len(entries) != 0 {
			t.Errorf("%s: %v %v", sub, entries, err)
		}
	}
}

func TestLFSWarning(t *testing.T) {
	f := newFixture(t)
	p := f.resolve(f.source(testenv.RepoLFS(t).Dir), "HEAD")
	for range 2 { // built, then cached
		if _, warnings := f.pristine(p); !hasCode(warnings, policy.CodeLFSNotFilled) {
			t.Errorf("warnings %v", warnings)
		}
	}
}

func TestPartialCloneRefused(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	repo.Git(t, "config", "uploadpack.allowFilter", "true")
	dir := filepath.Join(t.TempDir(), "partial")
	testenv.Git(t, "", "clone", "--quiet", "--no-checkout", "--filter=blob:none", "file://"+repo.Dir, dir)
	_, _, err := f.Resolve(t.Context(), f.source(dir), policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodePartialCloneRefused)
	if left, _ := os.ReadDir(f.path("repository-cache/git/partial/points")); len(left) != 0 {
		t.Errorf("marks %v", left)
	}
}
