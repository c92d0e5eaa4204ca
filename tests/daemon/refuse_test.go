package daemon

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"yoi.dev/yoi-runtime/api"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// TestTwoDaemonsOnOneRoot: the second of each kind is refused, by what it
// shares with the first and not only by a socket's name; the first goes on.
func TestTwoDaemonsOnOneRoot(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	second := *d
	second.API, second.HelperSoc = d.API+"2", d.HelperSoc+"2"
	for name, cmd := range map[string]struct {
		cmd  func(testing.TB) rig.Result
		code policy.Code
	}{
		"runtimed":                  {func(t testing.TB) rig.Result { return rig.Finish(t, second.RuntimedCmd(t)) }, policy.CodeRuntimeRootBusy},
		"helper":                    {func(t testing.TB) rig.Result { return rig.Finish(t, second.HelperCmd(t)) }, policy.CodeRuntimeRootBusy},
		"helper on the same socket": {func(t testing.TB) rig.Result { return rig.Finish(t, d.HelperCmd(t)) }, policy.CodeRuntimeRootBusy},
		"yoi run": {func(t testing.TB) rig.Result {
			y := p.Yoi(t)
			return y.Run(t, "run", "--repo", p.Give(t, testenv.RepoSmall(t)).Dir, "--", "true")
		}, policy.CodeRuntimeRootBusy},
	} {
		t.Run(name, func(t *testing.T) {
			r := cmd.cmd(t)
			if r.Code == 0 || r.Diagnostic() != cmd.code {
				t.Errorf("exit %d, code %q, want %s\n%s", r.Code, r.Diagnostic(), cmd.code, r.Stderr)
			}
		})
	}
	if _, err := d.Client.Info(t.Context()); err != nil {
		t.Errorf("the first daemon: %v", err)
	}
}

// TestHelperStartsFirst: on an empty directory, as its unit may at the first
// boot, without taking anything away from the daemon's user.
func TestHelperStartsFirst(t *testing.T) {
	testenv.Root(t)
	d := rig.NewDaemons(t, rig.NewPlace(t, "disk", yoiUser), 0)
	rig.Command(t, "find", d.Root, "-mindepth", "1", "-delete")
	d.Start(t)
	if _, err := d.Client.Doctor(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestWrongUser: a third user who can reach both sockets is told why not, and
// the operator's --allow-uid is the only way in.
func TestWrongUser(t *testing.T) {
	testenv.AsUserWith(t, rig.Ordinary, func() []string {
		p := rig.NewPlace(t, "disk", yoiUser)
		d := rig.StartDaemons(t, p, 0)
		// The modes of the files are a first fence; open it to see the second.
		for _, f := range []string{p.Dir, filepath.Dir(d.API)} {
			if err := os.Chmod(f, 0o711); err != nil {
				t.Fatal(err)
			}
		}
		for _, f := range []string{d.API, d.HelperSoc} {
			if err := os.Chmod(f, 0o666); err != nil {
				t.Fatal(err)
			}
		}
		return []string{"API=" + d.API, "HELPER=" + d.HelperSoc}
	}, func(t *testing.T) {
		c := api.NewClient(os.Getenv("API"))
		defer c.Close()
		_, err := c.Info(t.Context())
		wantCode(t, err, policy.CodePeerRefused)
		_, err = c.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: "/etc"})
		wantCode(t, err, policy.CodePeerRefused)
		h := helper.Dial(os.Getenv("HELPER"))
		defer h.Close()
		_, err = h.Live(t.Context())
		wantCode(t, err, policy.CodePeerRefused)
		wantCode(t, h.Remove(t.Context(), helper.RemoveRequest{AllocationID: "ws-1"}), policy.CodePeerRefused)
	})
}

// TestSocketModes: nobody but the owner and, for the API, its group can even
// connect, and the Runtime root is nobody else's to read.
func TestSocketModes(t *testing.T) {
	testenv.Root(t)
	d := rig.StartDaemons(t, rig.NewPlace(t, "disk", yoiUser), 0)
	for path, most := range map[string]os.FileMode{d.API: 0o660, d.HelperSoc: 0o600, d.Root: 0o700} {
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if st.Mode().Perm()&^most != 0 {
			t.Errorf("%s has mode %v, at most %v", path, st.Mode().Perm(), most)
		}
	}
	// A umask of 0 changes nothing.
	for _, sub := range []string{"workers", "execution-workspaces", "repository-cache", "tmp", "config-bundles"} {
		st, err := os.Stat(filepath.Join(d.Root, sub))
		if err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%s: %v, %v", sub, st, err)
		}
	}
}

// TestRelativeCwd: five ways to be wrong are five codes, and a way to be right
// is the directory that the Worker is in.
func TestRelativeCwd(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := testenv.Commit(t, testenv.RepoSmall(t), "links", map[string]*testenv.Entry{
		"out": {Mode: "120000", Data: "/etc"}, "up": {Mode: "120000", Data: "../.."}, "in": {Mode: "120000", Data: "src"},
		"absolute-in": {Mode: "120000", Data: "/workspace/small/src"}, "loop": {Mode: "120000", Data: "loop"},
	})
	ws := d.Workspace(t, p.Give(t, repo).Dir, nil)
	for cwd, code := range map[string]policy.Code{
		"/":             policy.CodeCwdAbsolute,
		"/workspace":    policy.CodeCwdAbsolute,
		"..":            policy.CodeCwdEscape,
		"src/../..":     policy.CodeCwdEscape,
		"src/..":        policy.CodeCwdEscape,
		"out":           policy.CodeCwdSymlinkEscape,
		"up":            policy.CodeCwdSymlinkEscape,
		"out/ssl":       policy.CodeCwdSymlinkEscape,
		"nothing":       policy.CodeCwdMissing,
		"src/nothing":   policy.CodeCwdMissing,
		"README.md":     policy.CodeCwdNotDirectory,
		"README.md/sub": policy.CodeCwdNotDirectory,
	} {
		t.Run(cwd, func(t *testing.T) {
			_, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"true"}, RelativeCwd: cwd})
			wantCode(t, err, code)
		})
	}
	for cwd, want := range map[string]string{"": "/workspace/small", ".": "/workspace/small", "src": "/workspace/small/src", "in": "/workspace/small/src", "./src/.": "/workspace/small/src", "src/": "/workspace/small/src"} {
		w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: []string{"/bin/pwd", "-P"}, RelativeCwd: cwd})
		if err != nil {
			t.Errorf("%q: %v", cwd, err)
			continue
		}
		ended(t, d, w.ID, 0)
		if got := strings.TrimSpace(logs(t, d, w.ID, "stdout")); got != want {
			t.Errorf("%q is %s, want %s", cwd, got, want)
		}
	}
	// Refused Workers leave no directory behind: only those that ran have one.
	entries, err := os.ReadDir(filepath.Join(d.Root, "workers"))
	if err != nil || len(entries) != 6 {
		t.Errorf("%d directories of Workers, %v", len(entries), err)
	}
	discard(t, d, ws.ID)
}

// TestUnknownThings: every id that names nothing has its own code.
func TestUnknownThings(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	ctx, c := t.Context(), d.Client
	_, err := c.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: "nothing"}}})
	wantCode(t, err, policy.CodeRepositoryUnknown)
	_, err = c.CreateWorkspace(ctx, runtime.CreateWorkspaceRequest{})
	wantCode(t, err, policy.CodeBadRequest)
	_, err = c.GetWorkspace(ctx, "ws-nothing")
	wantCode(t, err, policy.CodeAllocationUnknown)
	_, err = c.RemoveWorkspace(ctx, "ws-nothing", runtime.RemoveWorkspaceRequest{})
	wantCode(t, err, policy.CodeAllocationUnknown)
	_, err = c.SpawnWorker(ctx, runtime.SpawnWorkerRequest{AllocationID: "ws-nothing", Command: []string{"true"}})
	wantCode(t, err, policy.CodeAllocationUnknown)
	_, err = c.GetWorker(ctx, "wk-nothing")
	wantCode(t, err, policy.CodeWorkerUnknown)
	_, err = c.WaitWorker(ctx, "wk-nothing")
	wantCode(t, err, policy.CodeWorkerUnknown)
	_, err = c.Resolve(ctx, runtime.ResolveRequest{RepositoryID: "nothing"})
	wantCode(t, err, policy.CodeRepositoryUnknown)
	_, err = c.AddRepository(ctx, runtime.AddRepositoryRequest{Source: filepath.Join(p.Dir, "nothing")})
	wantCode(t, err, policy.CodeSourceUnreadable)
	d.Stop(t)
	rig.Clean(t, d.Root)
}

// TestAnswersHoldNoHostPath: every answer of the API, as it is on the wire.
func TestAnswersHoldNoHostPath(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo := p.Give(t, testenv.RepoSmall(t))
	ws := d.Workspace(t, repo.Dir, nil)
	w := d.Spawn(t, ws.ID, "exit 1")
	ended(t, d, w.ID, 1)
	ctx, c := t.Context(), d.Client
	answers := map[string]func() (any, error){
		"info":       func() (any, error) { return c.Info(ctx) },
		"doctor":     func() (any, error) { return c.Doctor(ctx) },
		"workspace":  func() (any, error) { return c.GetWorkspace(ctx, ws.ID) },
		"workspaces": func() (any, error) { return c.ListWorkspaces(ctx, runtime.ListFilter{}) },
		"evidence":   func() (any, error) { return c.WorkspaceEvidence(ctx, ws.ID) },
		"disk":       func() (any, error) { return c.WorkspaceDisk(ctx, ws.ID) },
		"worker":     func() (any, error) { return c.GetWorker(ctx, w.ID) },
		"workers":    func() (any, error) { return c.ListWorkers(ctx, runtime.ListFilter{}) },
		"gc":         func() (any, error) { return c.GC(ctx, runtime.GCRequest{}) },
		"verify":     func() (any, error) { return c.LedgerVerify(ctx) },
		"replay":     func() (any, error) { return c.LedgerReplay(ctx) },
		"events": func() (any, error) {
			var all []runtime.Event
			err := c.Events(ctx, runtime.EventsRequest{}, func(e runtime.Event) bool { all = append(all, e); return true })
			return all, err
		},
		"records": func() (any, error) {
			var all []runtime.LedgerRecord
			err := c.LedgerRecords(ctx, runtime.LedgerRequest{}, func(r runtime.LedgerRecord) bool { all = append(all, r); return true })
			return all, err
		},
	}
	for name, ask := range answers {
		v, err := ask()
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range []string{p.Dir, d.Root, repo.Dir} {
			if strings.Contains(string(b), path) {
				t.Errorf("%s names %s:\n%s", name, path, b)
			}
		}
	}
	discard(t, d, ws.ID)
}
