package gitcache

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
)

func TestResolveSelectors(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	repo.Git(t, "branch", "both", "HEAD~1")
	repo.Git(t, "tag", "both", "HEAD")
	repo.Git(t, "tag", "blobtag", "HEAD:README.md")
	repo.Git(t, "branch", "abcd", "HEAD~1")
	src := f.source(repo.Dir)
	at := func(rev string) string { return repo.Git(t, "rev-parse", rev+"^{commit}") }
	lost := repo.Git(t, "commit-tree", "-p", "HEAD", "-m", "lost", "HEAD^{tree}")
	tree, blob := repo.Git(t, "rev-parse", "HEAD^{tree}"), repo.Git(t, "rev-parse", "HEAD:README.md")

	for _, c := range []struct {
		sel  string
		want string
		code policy.Code
	}{
		{sel: "HEAD", want: at("HEAD")},
		{sel: "HEAD~1", want: at("HEAD~1")},
		{sel: "main", want: at("main")},
		{sel: "branch:topic", want: at("topic")},
		{sel: "tag:v1", want: at("v1")},
		{sel: "v1", want: at("v1")},
		{sel: "ref:refs/tags/v2", want: at("v2")},
		{sel: "branch:both", want: at("refs/heads/both")},
		{sel: "tag:both", want: at("refs/tags/both")},
		{sel: "branch:abcd", want: at("refs/heads/abcd")},
		{sel: "commit:" + at("HEAD")[:8], want: at("HEAD")},
		{sel: "commit:" + lost, want: lost},
		{sel: lost[:12], want: lost},
		{sel: "both", code: policy.CodeSelectorAmbiguous},
		{sel: "nothing", code: policy.CodeSelectorMissing},
		{sel: "branch:v1", code: policy.CodeSelectorMissing},
		{sel: "tag:topic", code: policy.CodeSelectorMissing},
		{sel: "commit:abcd", code: policy.CodeSelectorMissing},
		{sel: "commit:" + strings.Repeat("5", 40), code: policy.CodeSelectorMissing},
		{sel: "blobtag", code: policy.CodeSelectorNotCommit},
		{sel: "tag:blobtag", code: policy.CodeSelectorNotCommit},
		{sel: "HEAD^{tree}", code: policy.CodeSelectorNotCommit},
		{sel: "commit:" + tree, code: policy.CodeSelectorNotCommit},
		{sel: "commit:" + blob[:10], code: policy.CodeSelectorNotCommit},
	} {
		t.Run(c.sel, func(t *testing.T) {
			sel, err := policy.ParseSelector(c.sel)
			if err != nil {
				t.Fatal(err)
			}
			p, _, err := f.Resolve(t.Context(), src, sel, ResolveOptions{})
			if c.code != "" {
				wantCode(t, err, c.code)
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if p.CommitID != c.want || p.TreeID != repo.Git(t, "rev-parse", c.want+"^{tree}") || p.Subject == "" || p.CommittedAt.Unix() < 1_600_000_000 {
				t.Errorf("point %+v, want commit %s", p, c.want)
			}
			if out := testenv.Git(t, f.path("repository-cache/git/small/bare.git"), "rev-list", "--objects", "--quiet", p.CommitID); out != "" {
				t.Errorf("not whole: %s", out)
			}
		})
	}
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("still held: %q", held)
	}
}

func TestResolveShortAmbiguous(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	// Four hexadecimal digits: a few hundred commits are sure to collide.
	seen := map[string]bool{}
	var prefix string
	var stream strings.Builder
	for i := range 1200 {
		stream.WriteString("commit refs/heads/many\ncommitter a <a@b> 1700000000 +0000\ndata 6\n")
		stream.WriteString(strings.Repeat("x", 5) + string(rune('a'+i%26)) + "\n")
	}
	write(t, filepath.Join(repo.Dir, "../stream"), stream.String())
	run(t, "sh", "-c", "git -C '"+repo.Dir+"' fast-import --quiet <'"+filepath.Join(repo.Dir, "../stream")+"'")
	for _, oid := range strings.Fields(repo.Git(t, "rev-list", "many")) {
		if seen[oid[:4]] {
			prefix = oid[:4]
		}
		seen[oid[:4]] = true
	}
	if prefix == "" {
		t.Fatal("no two ids share four digits")
	}
	for _, s := range []string{"commit:" + prefix, prefix} {
		sel, _ := policy.ParseSelector(s)
		_, _, err := f.Resolve(t.Context(), f.source(repo.Dir), sel, ResolveOptions{})
		wantCode(t, err, policy.CodeSelectorAmbiguous)
	}
}

func TestResolveKinds(t *testing.T) {
	for _, c := range []struct {
		name string
		make func(testing.TB) testenv.Repo
		code policy.Code
		warn policy.Code
	}{
		{name: "bare", make: testenv.RepoBare},
		{name: "worktree", make: testenv.RepoWorktree},
		{name: "empty", make: testenv.RepoEmpty, code: policy.CodeRepositoryEmpty},
		{name: "shallow", make: testenv.RepoShallow, warn: policy.CodeShallowSource},
		{name: "submodules", make: testenv.RepoSubmodules},
		{name: "lfs", make: testenv.RepoLFS},
		{name: "odd", make: testenv.RepoOddNames},
		{name: "bytes", make: testenv.RepoNonUTF8},
		{name: "real", make: testenv.RepoReal},
		{name: "sha256", make: repoSHA256},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFixture(t)
			repo := c.make(t)
			for _, url := range []string{repo.Dir, "file://" + repo.Dir} {
				src := f.source(url)
				if url != repo.Dir {
					src.ID = "remote"
				}
				p, warnings, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
				if c.code != "" {
					wantCode(t, err, c.code)
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				// HEAD of a linked worktree by URL is git's own: the worktree's.
				if p.CommitID != repo.Commit && !(c.name == "worktree" && url != repo.Dir) {
					t.Errorf("%s: commit %s, want %s", url, p.CommitID, repo.Commit)
				}
				if hasCode(warnings, policy.CodeShallowSource) != (c.warn == policy.CodeShallowSource) {
					t.Errorf("%s: warnings %v", url, warnings)
				}
				checkWorkspace(t, f, p, repo)
			}
		})
	}
}

func repoSHA256(t testing.TB) testenv.Repo {
	dir := filepath.Join(t.TempDir(), "sha256")
	testenv.Git(t, "", "init", "--quiet", "--object-format=sha256", dir)
	r := testenv.Repo{Dir: dir}
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("text\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r.Git(t, "add", ".")
	r.Git(t, "commit", "--quiet", "-m", "first")
	r.Git(t, "tag", "-a", "-m", "tag", "v1")
	r.Commit, r.Tree = r.Git(t, "rev-parse", "HEAD"), r.Git(t, "rev-parse", "HEAD^{tree}")
	return r
}

func TestResolveWarmCost(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source(repo.Dir)
	p := f.resolve(src, "HEAD")
	count := func(what string, want int64, do func()) {
		t.Helper()
		before := f.spawns.Load()
		do()
		if n := f.spawns.Load() - before; n != want {
			t.Errorf("%s started git %d times, want %d", what, n, want)
		}
	}
	f.pristine(p)
	count("a warm resolve", 1, func() { f.resolve(src, "HEAD~0") })
	count("a warm resolve of HEAD", 0, func() { f.resolve(src, "HEAD") })
	repo.Git(t, "pack-refs", "--all")
	count("a warm resolve of a packed HEAD", 0, func() { f.resolve(src, "HEAD") })
	// What two files do not say, git is asked: HEAD by way of a symbolic ref.
	repo.Git(t, "symbolic-ref", "refs/heads/alias", "refs/heads/"+repo.Git(t, "symbolic-ref", "--short", "HEAD"))
	branch := repo.Git(t, "symbolic-ref", "HEAD")
	repo.Git(t, "symbolic-ref", "HEAD", "refs/heads/alias")
	count("a warm resolve of an alias", 1, func() {
		if got := f.resolve(src, "HEAD"); got.CommitID != p.CommitID {
			t.Errorf("HEAD by an alias is %s, want %s", got.CommitID, p.CommitID)
		}
	})
	repo.Git(t, "symbolic-ref", "HEAD", branch)
	count("a whole commit id", 0, func() { f.resolve(src, "commit:"+p.CommitID) })
	stale(t, repo.Dir)
	count("a clean check of touched files", 1, func() {
		if err := f.CheckClean(t.Context(), src); err != nil {
			t.Fatal(err)
		}
	})
	old := time.Now().Add(-time.Hour)
	for _, name := range strings.Fields(repo.Git(t, "ls-files")) {
		if err := os.Chtimes(filepath.Join(repo.Dir, name), old, old); err != nil {
			t.Fatal(err)
		}
	}
	repo.Git(t, "update-index", "--refresh")
	count("a clean check of untouched files", 0, func() {
		if err := f.CheckClean(t.Context(), src); err != nil {
			t.Fatal(err)
		}
	})
	count("a pin, a warm tree and a git directory", 0, func() {
		if err := f.Pin(t.Context(), p, "ws-1"); err != nil {
			t.Fatal(err)
		}
		f.workspace(p, GitDirOptions{Branch: "work"})
	})
}

func TestResolveRemoteNoNetwork(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	src := f.source("file://" + repo.Dir)
	p := f.resolve(src, "HEAD~1")
	if err := os.Rename(repo.Dir, repo.Dir+".gone"); err != nil {
		t.Fatal(err)
	}
	if q := f.resolve(src, "commit:"+p.CommitID); q.TreeID != p.TreeID {
		t.Errorf("tree %s, want %s", q.TreeID, p.TreeID)
	}
	_, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{})
	wantCode(t, err, policy.CodeSourceUnreadable)
	if q, _, err := f.Resolve(t.Context(), src, policy.Selector{Kind: policy.SelectBranch, Value: "main"}, ResolveOptions{NoFetch: true}); err == nil && q.CommitID == "" {
		t.Error("an empty point")
	}
}

func TestSourceErrors(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pointer/.git"), "gitdir: /nonexistent\n")
	write(t, filepath.Join(dir, "plain/file"), "")
	for s, code := range map[string]policy.Code{
		"":                          policy.CodeSourceInvalid,
		dir + "/absent":             policy.CodeSourceUnreadable,
		dir + "/plain":              policy.CodeSourceNotRepository,
		dir + "/pointer":            policy.CodeSourceNotRepository,
		"http://example.com/x":      policy.CodeProtocolRefused,
		"git://example.com/x":       policy.CodeProtocolRefused,
		"ext::sh -c id":             policy.CodeProtocolRefused,
		"ssh://-oProxyCommand=id/x": policy.CodeSourceInvalid,
		"https://":                  policy.CodeSourceInvalid,
		"file://other-host/x":       policy.CodeSourceInvalid,
		"x\ny":                      policy.CodeSourceInvalid,
	} {
		_, err := ParseSource(s, dir)
		if d := wantCode(t, err, code); strings.Contains(d.Error(), "ProxyCommand") {
			t.Errorf("the source is repeated: %v", d)
		}
	}
	src, err := ParseSource("git@host.example:team/app.git", "/")
	if err != nil || src.URL != "ssh://git@host.example/~/team/app.git" || src.ID != "app" {
		t.Errorf("scp form: %+v, %v", src, err)
	}
}

func TestSourceFromSubdirectory(t *testing.T) {
	repo := testenv.RepoSmall(t)
	src, err := ParseSource("src", repo.Dir)
	if err != nil || src.URL != repo.Dir {
		t.Errorf("source %+v, %v", src, err)
	}
}

func TestPasswordNeverShown(t *testing.T) {
	f := newFixture(t)
	src, err := ParseSource("https://user:s3cret@127.0.0.1:1/repo.git", "/")
	if err != nil {
		t.Fatal(err)
	}
	_, err = f.Fetch(t.Context(), src)
	d := wantCode(t, err, policy.CodeFetchFailed)
	if strings.Contains(d.Error(), "s3cret") {
		t.Errorf("the password is in %v", d)
	}
	r, done, err := f.openSource(t.Context(), src)
	if err != nil {
		t.Fatal(err)
	}
	defer done()
	infos, err := f.List(t.Context())
	if err != nil || len(infos) != 1 || infos[0].ID != r.id || strings.Contains(infos[0].Source, "s3cret") {
		t.Errorf("list: %+v, %v", infos, err)
	}
}

func TestScope(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoSmall(t)
	repo = testenv.Commit(t, repo, "dirs", map[string]*testenv.Entry{
		"root": {Data: "r"}, "a/file": {Data: "1"}, "a/b/file": {Data: "2"}, "a/b/c/deep": {Data: "3"}, "a/other/x": {Data: "4"}, "d[1] */y": {Data: "5"}, "z/y": {Data: "6"},
	})
	src := f.source(repo.Dir)
	scope, err := policy.ParseScope([]string{"a/b", "d[1] *"})
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{Scope: scope})
	if err != nil {
		t.Fatal(err)
	}
	ws := f.workspace(p, GitDirOptions{})
	for name, want := range map[string]bool{"root": true, "a/file": true, "a/b/file": true, "a/b/c/deep": true, "a/other/x": false, "d[1] */y": true, "z/y": false, "src": false} {
		if exists(filepath.Join(ws, name)) != want {
			t.Errorf("%s present: %v, want %v", name, !want, want)
		}
	}
	git := inSandbox(t, f, p, ws)
	if out := git("status", "--porcelain"); out != "" {
		t.Errorf("status:\n%s", out)
	}
	if out := git("sparse-checkout", "list"); out != "a/b\n\"d[1] *\"\n" && out != "a/b\nd[1] *\n" {
		t.Errorf("git sees the cone as %q", out)
	}
	git("sparse-checkout", "add", "z")
	if !exists(filepath.Join(ws, "z/y")) {
		t.Error("the cone cannot be widened")
	}
	_, _, err = f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{Scope: policy.Scope{"a/file"}})
	wantCode(t, err, policy.CodeScopeEmpty)
	_, _, err = f.Resolve(t.Context(), src, policy.Selector{}, ResolveOptions{Scope: policy.Scope{"nothing"}})
	wantCode(t, err, policy.CodeScopeEmpty)
}
