package scope

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// serve is a bare copy of layered behind an https server that filters.
func serve(t *testing.T) (*testenv.GitServer, testenv.Repo) {
	t.Helper()
	source := layered(t)
	source = testenv.Commit(t, source, "docs changed", map[string]*testenv.Entry{"docs/one": {Data: "uno\n"}})
	dir := t.TempDir()
	bare := filepath.Join(dir, "app.git")
	testenv.Git(t, "", "clone", "--quiet", "--bare", source.Dir, bare)
	testenv.Git(t, bare, "config", "uploadpack.allowFilter", "true")
	srv := testenv.NewGitServer(t, dir)
	return srv, testenv.Repo{Dir: bare, Commit: source.Commit, Tree: source.Tree, Bare: true}
}

// trust is the server's certificate as a file of the place's user.
func trust(t *testing.T, p rig.Place, srv *testenv.GitServer) string {
	t.Helper()
	b, err := os.ReadFile(srv.CA)
	if err != nil {
		t.Fatal(err)
	}
	ca := filepath.Join(p.Dir, "ca.pem")
	if err := os.WriteFile(ca, b, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(ca, p.UID, p.UID); err != nil {
		t.Fatal(err)
	}
	return ca
}

// offline is what a Worker without a network does with git on a scope of docs:
// everything works on what the point holds there, and what was not fetched is
// refused at once, clearly.
const offline = `set -e
git status --porcelain; git log --format=%s -2; git diff HEAD; git show HEAD:docs/one >/dev/null
echo more >>docs/one; git stash -q; git stash pop -q; git commit -qam work; git checkout -q -b topic; git checkout -q HEAD~1; git checkout -q topic
git gc -q; git fsck; git worktree add --no-checkout -q /scratch/wt HEAD~1; git status --porcelain
if git show HEAD:a/b/x 2>/tmp/e; then exit 1; fi
grep -q 'this-object-was-not-fetched' /tmp/e; grep -q 'could not fetch' /tmp/e
if git sparse-checkout add a 2>/tmp/e; then exit 2; fi
grep -q 'could not fetch' /tmp/e; git sparse-checkout set docs; git status --porcelain
if git log -p -1 HEAD~1 >/dev/null 2>/tmp/e; then exit 3; fi
grep -q 'could not fetch' /tmp/e`

const offlineSays = "docs changed\nlayers\n"

// TestPartialCloneOffline is the whole way as root and as an ordinary user: the
// objects of the scope come before the Worker, which has no network.
func TestPartialCloneOffline(t *testing.T) {
	testenv.Root(t)
	for uid, filter := range map[int]string{0: "tree:0", rig.Ordinary: "blob:none"} {
		t.Run(filter, func(t *testing.T) {
			srv, repo := serve(t)
			p := rig.NewPlace(t, "disk", uid)
			y := p.Yoi(t)
			y.Env = append(y.Env, "GIT_SSL_CAINFO="+trust(t, p, srv))
			url := srv.URL + "/app.git"
			y.OK(t, "repo", "add", "--filter", filter, url)
			for i, s := range append(rig.Strategies("disk"), policy.StrategyGitSparse) {
				r := y.Run(t, "run", "-v", "--json", "--repo", url, "--rev", "commit:"+repo.Commit, "--strategy", string(s), "--scope", "docs", "--", "sh", "-c", offline).Want(t, 0)
				if !strings.Contains(r.Stderr, offlineSays) {
					t.Errorf("%s: the Worker says %s", s, r.Stderr)
				}
				var ev runtime.Evidence
				r.JSON(t, &ev)
				if _, ok := ev.Timings["objects"]; !ok {
					t.Errorf("the step is not in the evidence: %v", ev.Timings)
				}
				if i == 0 {
					srv.Down.Store(true) // the rest has everything
				}
			}
			// Another scope needs the server, and says so.
			asked := srv.Requests.Load()
			y.Run(t, "run", "--repo", url, "--rev", "commit:"+repo.Commit, "--scope", "a", "--", "true").Refused(t, 125, policy.CodeFetchFailed)
			if srv.Requests.Load() == asked {
				t.Error("the server was not asked")
			}
			srv.Down.Store(false)
			y.OK(t, "run", "--repo", url, "--rev", "commit:"+repo.Commit, "--scope", "a", "--", "cat", "a/b/x")
			if events := y.OK(t, "events"); strings.Count(events, "repository.objects_fetched") != 2 {
				t.Errorf("events\n%s", events)
			}
			rig.Clean(t, y.Root)
		})
	}
}

func TestFiltersThatAreRefused(t *testing.T) {
	testenv.Root(t)
	srv, repo := serve(t)
	p := rig.NewPlace(t, "disk", rig.Ordinary)
	y := p.Yoi(t)
	y.Env = append(y.Env, "GIT_SSL_CAINFO="+trust(t, p, srv))
	url := srv.URL + "/app.git"
	for _, filter := range []string{"none", "blob:limit=", "blob:limit=-1", "sparse:oid=main:x", "tree:1", "combine:blob:none+tree:0", "blob:none "} {
		y.Run(t, "repo", "add", "--filter", filter, url).Refused(t, 1, policy.CodeFilterInvalid)
	}
	y.Run(t, "repo", "add", "--filter", "blob:none", p.Give(t, repo).Dir).Refused(t, 1, policy.CodeFilterInvalid)
	y.OK(t, "repo", "add", "--id", "app", url)
	y.Run(t, "repo", "add", "--id", "app", "--filter", "blob:none", url).Refused(t, 1, policy.CodeRepositoryExists)
	y.OK(t, "repo", "rm", "app")
	y.OK(t, "repo", "add", "--id", "app", "--filter", "blob:none", url)
	testenv.Git(t, repo.Dir, "config", "uploadpack.allowFilter", "false")
	y.Run(t, "repo", "fetch", "app").Refused(t, 1, policy.CodeFilterRefused)
	y.Run(t, "run", "--repo", url, "--", "true").Refused(t, 125, policy.CodeFilterRefused)
	rig.Clean(t, y.Root)
}

// TestPartialCloneThroughDaemons is the same with the cache and the privileged
// side in two processes of two users.
func TestPartialCloneThroughDaemons(t *testing.T) {
	testenv.Root(t)
	srv, repo := serve(t)
	for _, helperUID := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", rig.Ordinary)
		machine := rig.Before(t)
		d := rig.NewDaemons(t, p, helperUID)
		d.RuntimedEnv = []string{"GIT_SSL_CAINFO=" + trust(t, p, srv)}
		d.Start(t)
		srv.Down.Store(false)
		r, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{ID: "app", Source: srv.URL + "/app.git", Options: policy.RepositoryOptions{Filter: "tree:0"}})
		if err != nil || r.Options.Filter != "tree:0" {
			t.Fatalf("%+v %v", r, err)
		}
		for _, s := range []policy.StrategyName{policy.StrategyAuto, policy.StrategyGitSparse, policy.StrategyCopy} {
			ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Strategy: s, Repositories: []runtime.RepositoryRequest{
				{RepositoryID: "app", Scope: []string{"docs"}, Selector: policy.Selector{Kind: policy.SelectCommit, Value: repo.Commit}},
			}})
			if err != nil {
				t.Fatal(err, d.Runtimed.Log())
			}
			srv.Down.Store(true)
			w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"sh", "-c", offline}})
			if err == nil {
				w, err = d.Client.WaitWorker(t.Context(), w.ID)
			}
			if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
				var out strings.Builder
				_, _ = d.Client.WorkerLogs(t.Context(), w.ID, runtime.LogsRequest{Stream: "stderr"}, &out)
				t.Errorf("%s: %+v %v\n%s", s, w.Outcome, err, out.String())
			}
			if _, err := d.Client.RemoveWorkspace(t.Context(), ws.ID, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
				t.Error(err)
			}
		}
		d.Stop(t)
		rig.Clean(t, d.Root)
		machine.Unchanged(t)
	}
}

// TestPartialResults: what a Worker made in a partial clone can be looked at and
// collected.
func TestPartialResults(t *testing.T) {
	testenv.Root(t)
	srv, repo := serve(t)
	for _, s := range []policy.StrategyName{policy.StrategyOverlay, policy.StrategyGitSparse} {
		p := rig.NewPlace(t, "disk", rig.Ordinary)
		y := p.Yoi(t)
		y.Env = append(y.Env, "GIT_SSL_CAINFO="+trust(t, p, srv))
		srv.Down.Store(false)
		y.OK(t, "repo", "add", "--id", "app", "--filter", "tree:0", srv.URL+"/app.git")
		var ws runtime.Workspace
		y.Run(t, "ws", "create", "--json", "--strategy", string(s), "--scope", "docs", "--rev", "commit:"+repo.Commit, "app").Want(t, 0).JSON(t, &ws)
		srv.Down.Store(true)
		id := string(ws.ID)
		y.Work(t, ws.ID, "echo x >docs/new && git add docs/new && git commit -qm work && echo more >>docs/one && rm docs/two")
		diff := y.OK(t, "ws", "diff", id)
		for _, want := range []string{"+x\n", " uno\n+more\n", "deleted file mode 100644\n", "+++ b/docs/new\n"} {
			if !strings.Contains(diff, want) {
				t.Errorf("%s: the diff lacks %q\n%s", s, want, diff)
			}
		}
		if strings.Contains(diff, "a/a/") {
			t.Errorf("%s: what lies outside the scope is in the diff\n%s", s, diff)
		}
		y.OK(t, "ws", "collect", id, "--as", "work")
		y.OK(t, "ws", "rm", "--discard", id)
		y.OK(t, "repo", "drop", "app", "work")
		rig.Clean(t, y.Root)
	}
}
