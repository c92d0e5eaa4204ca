package remote

import (
	"encoding/json"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

const secret = "s3cr3t-of-the-operator"

// uses is everything that git has to be able to do on a shallow tree.
const uses = `set -e
test -z "$(git status --porcelain)"
git fsck --no-progress
git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x
git gc -q
git log --oneline | wc -l
git worktree add -q ../scratch/w 2>/dev/null || git worktree add -q /tmp/w
git stash list`

// changes makes what a workspace's snapshot has to carry.
const changes = `set -e
echo changed >README.md; echo new >untracked; mkdir empty
ln -s /etc/passwd link2; ln untracked hard; rm -f run.sh; chmod 600 untracked
git add untracked
git -c user.name=a -c user.email=a@b commit -q -m mine`

const same = `set -e
test "$(cat README.md)" = changed; test "$(readlink link2)" = /etc/passwd; test untracked -ef hard
test -d empty; test ! -e run.sh; test "$(stat -c %a untracked)" = 600
git log --format=%s | head -1; git status --porcelain`

// web is an HTTP store that wants a token.
func web(t *testing.T) *httptest.Server {
	var mu sync.Mutex
	kept := map[string][]byte{}
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer "+secret {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		mu.Lock()
		defer mu.Unlock()
		switch b, ok := kept[r.URL.Path]; {
		case r.Method == http.MethodPut:
			kept[r.URL.Path], _ = io.ReadAll(r.Body)
		case !ok:
			http.NotFound(w, r)
		case r.Method == http.MethodDelete:
			delete(kept, r.URL.Path)
		default:
			_, _ = w.Write(b)
		}
	}))
	t.Cleanup(srv.Close)
	return srv
}

func credentials(t *testing.T, root string, uid int, text string) {
	t.Helper()
	p := filepath.Join(root, "snapshot-credentials.toml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(p, uid, uid); err != nil {
		t.Fatal(err)
	}
}

func export(t *testing.T, y rig.Yoi, what, store string) (s runtime.StoredSnapshot) {
	t.Helper()
	if err := json.Unmarshal([]byte(y.OK(t, "snapshot", "export", what, "--to", store, "--json")), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

func kept(t *testing.T, y rig.Yoi, repo, script string) string {
	t.Helper()
	var ev runtime.Evidence
	if err := json.Unmarshal([]byte(y.OK(t, "run", "--keep", "--json", "--repo", repo, "--", "sh", "-c", script)), &ev); err != nil {
		t.Fatal(err)
	}
	return string(ev.AllocationID)
}

// TestEmbedded goes over HTTP, as root and as an ordinary user: the same tree
// has the same digest for both.
func TestEmbedded(t *testing.T) {
	testenv.Root(t)
	small := testenv.RepoSmall(t)
	digests := map[string]bool{}
	for _, c := range []rig.Place{{FS: "btrfs", UID: 0}, {FS: "xfs", UID: 0}, {FS: "ext4", UID: rig.Ordinary}} {
		t.Run(c.String(), func(t *testing.T) {
			p := rig.NewPlace(t, c.FS, c.UID)
			repo := p.Give(t, small).Dir
			y, z := p.Yoi(t), p.Yoi(t)
			z.Root = filepath.Join(p.Dir, "elsewhere")
			srv := web(t)
			y.OK(t, "repo", "add", "--id", "small", repo)
			z.OK(t, "repo", "list")
			r := y.Run(t, "snapshot", "export", "small", "--to", srv.URL+"/x")
			if r.Code != 1 || !strings.Contains(r.Stderr, "code: snapshot_store_refused") {
				t.Errorf("without credentials: %d, %s", r.Code, r.Stderr)
			}
			for _, root := range []string{y.Root, z.Root} {
				credentials(t, root, c.UID, "[[store]]\nurl = \""+srv.URL+"\"\ntoken = \""+secret+"\"\n")
			}
			point := export(t, y, "small", srv.URL+"/x")
			ws := kept(t, y, repo, changes)
			work := export(t, y, ws, srv.URL+"/x")
			digests[point.Digest+work.Digest] = true
			run := func(digest, script string) string {
				return z.OK(t, "run", "--repo", "snapshot+"+srv.URL+"/x", "--rev", "snapshot:"+digest, "--strategy", "remote_snapshot", "--", "sh", "-c", script)
			}
			if out := run(point.Digest, uses); !strings.Contains(out, "2") {
				t.Errorf("%s", out)
			}
			if out := run(work.Digest, same); !strings.Contains(out, "third") || !strings.Contains(out, "?? untracked") || !strings.Contains(out, " D run.sh") {
				t.Errorf("%s", out)
			}
			srv.Close() // what is in the cache needs no store
			run(point.Digest, "true")
			run(work.Digest, same)
			// Also when the tree went, and has to be made of what is kept.
			z.OK(t, "gc", "--keep-cache", "1")
			run(work.Digest, same)
			rig.Clean(t, z.Root)
			y.OK(t, "ws", "rm", ws, "--discard")
			rig.Clean(t, y.Root)
			noSecret(t, y.Root)
			noSecret(t, z.Root)
		})
	}
	if len(digests) != 1 {
		t.Errorf("%d digests for one tree", len(digests))
	}
}

// noSecret looks for the credentials in all that a Runtime root holds but the
// file that they come from.
func noSecret(t *testing.T, root string) {
	t.Helper()
	err := filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() || d.Name() == "snapshot-credentials.toml" {
			return err
		}
		b, err := os.ReadFile(p)
		if err == nil && strings.Contains(string(b), secret) {
			t.Errorf("a secret in %s", p)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
}

// TestDaemons: the daemon is nobody special, and its own to reach the store.
func TestDaemons(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 64400)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	store := filepath.Join(p.Dir, "store")
	if err := os.Mkdir(store, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(store, p.UID, p.UID); err != nil {
		t.Fatal(err)
	}
	d := rig.StartDaemons(t, p, 0)
	r, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: repo})
	if err != nil {
		t.Fatal(err)
	}
	ws := create(t, d, runtime.RepositoryRequest{RepositoryID: r.ID}, "")
	live := d.Spawn(t, ws.ID, "sleep 60")
	_, err = d.Client.ExportSnapshot(t.Context(), runtime.ExportSnapshotRequest{Store: store, AllocationID: ws.ID})
	if policy.AsDiagnostic(err).Code != policy.CodeAllocationInUse {
		t.Errorf("a live Worker: %v", err)
	}
	if _, err := d.Client.StopWorker(t.Context(), live.ID, runtime.StopRequest{Grace: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	ended(t, d, d.Spawn(t, ws.ID, changes))
	s, err := d.Client.ExportSnapshot(t.Context(), runtime.ExportSnapshotRequest{Store: store, AllocationID: ws.ID})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Runtimed.Log())
	}
	list, err := d.Client.ListStoredSnapshots(t.Context(), store)
	if err != nil || len(list.Items) != 1 || list.Items[0].Digest != s.Digest {
		t.Errorf("%v, %v", list, err)
	}
	im, err := d.Client.ImportSnapshot(t.Context(), runtime.ImportSnapshotRequest{Store: store, Digest: s.Digest, RepositoryID: "work"})
	if err != nil || im.Point.Snapshot != s.Digest {
		t.Fatalf("%+v, %v\n%s", im, err, d.Runtimed.Log())
	}
	copied := create(t, d, runtime.RepositoryRequest{RepositoryID: "work", Selector: im.Point.Selector}, policy.StrategyRemoteSnapshot)
	ended(t, d, d.Spawn(t, copied.ID, same))
	for _, w := range []runtime.Workspace{ws, copied} {
		if _, err := d.Client.RemoveWorkspace(t.Context(), w.ID, runtime.RemoveWorkspaceRequest{Discard: w.ID == ws.ID}); err != nil {
			t.Error(err)
		}
	}
	if err := d.Client.RemoveStoredSnapshot(t.Context(), store, policy.SnapshotDigest(s.Digest)); err != nil {
		t.Error(err)
	}
}

func create(t *testing.T, d *rig.Daemons, repo runtime.RepositoryRequest, s policy.StrategyName) runtime.Workspace {
	t.Helper()
	ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{repo}, Strategy: s})
	if err != nil {
		t.Fatalf("%v\n%s\n%s", err, d.Runtimed.Log(), d.Helper.Log())
	}
	return ws
}

func ended(t *testing.T, d *rig.Daemons, w runtime.Worker) {
	t.Helper()
	w, err := d.Client.WaitWorker(t.Context(), w.ID)
	if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
		var out strings.Builder
		_, _ = d.Client.WorkerLogs(t.Context(), w.ID, runtime.LogsRequest{Stream: "stderr"}, &out)
		t.Fatalf("%+v, %v\n%s", w.Outcome, err, out.String())
	}
}

// TestS3 speaks to a real server: versitygw, on loopback.
func TestS3(t *testing.T) {
	testenv.Root(t)
	p := rig.NewPlace(t, "ext4", 0)
	repo := p.Give(t, testenv.RepoSmall(t)).Dir
	endpoint := s3Server(t, p.Dir)
	store := "s3://bucket/some/prefix?endpoint=" + endpoint
	y, z := p.Yoi(t), p.Yoi(t)
	z.Root = filepath.Join(p.Dir, "elsewhere")
	program := "YOI_S3=" + rig.Program(t, "yoi-s3")
	y.Env = append(y.Env, program, "AWS_ACCESS_KEY_ID=access", "AWS_SECRET_ACCESS_KEY="+secret)
	z.Env = append(z.Env, program)
	y.OK(t, "repo", "add", "--id", "small", repo)
	s := export(t, y, "small", store)
	if out := y.OK(t, "snapshot", "list", store); !strings.Contains(out, s.Digest) {
		t.Errorf("%s", out)
	}
	refused := func(y rig.Yoi, code string, args ...string) {
		t.Helper()
		r := y.Run(t, args...)
		if r.Code == 0 || !strings.Contains(r.Stderr, "code: "+code+"\n") || strings.Contains(r.Stderr+r.Stdout, secret) {
			t.Errorf("%q: %d\n%s", args, r.Code, r.Stderr)
		}
	}
	zero := "sha256:" + strings.Repeat("0", 64)
	refused(z, "snapshot_store_refused", "snapshot", "list", store)
	refused(y, "remote_snapshot_unknown", "snapshot", "import", store, zero)
	refused(y, "remote_snapshot_unknown", "snapshot", "remove", store, zero)
	refused(y, "remote_snapshot_unknown", "snapshot", "list", "s3://no-such-bucket?endpoint="+endpoint)
	credentials(t, z.Root, 0, "[[store]]\nurl = \"s3://bucket?endpoint="+endpoint+"\"\naccess_key = \"access\"\nsecret_key = \"wrong\"\n")
	refused(z, "snapshot_store_refused", "snapshot", "import", store, s.Digest)
	credentials(t, z.Root, 0, "[[store]]\nurl = \"s3://bucket?endpoint="+endpoint+"\"\naccess_key = \"access\"\nsecret_key = \""+secret+"\"\n")
	z.OK(t, "run", "--repo", "snapshot+"+store, "--rev", "snapshot:"+s.Digest, "--strategy", "remote_snapshot", "--", "sh", "-c", uses)
	y.OK(t, "snapshot", "remove", store, s.Digest)
	refused(y, "remote_snapshot_unknown", "snapshot", "remove", store, s.Digest)
	rig.Clean(t, z.Root)
	noSecret(t, z.Root)
	noSecret(t, y.Root)
}

// s3Server starts versitygw on a directory of dir and returns its URL.
func s3Server(t *testing.T, dir string) string {
	t.Helper()
	module, err := rig.ModuleDir()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("go", "tool", "-n", "-modfile=scripts/s3server.mod", "versitygw") // builds it, the first time
	cmd.Dir = module
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("versitygw cannot be built: %v", err)
	}
	data := filepath.Join(dir, "s3")
	if err := os.MkdirAll(filepath.Join(data, "bucket"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close()
	srv := exec.Command(strings.TrimSpace(string(out)), "--port", addr, "posix", data)
	srv.Env = append(os.Environ(), "ROOT_ACCESS_KEY=access", "ROOT_SECRET_KEY="+secret)
	srv.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var log strings.Builder
	srv.Stdout, srv.Stderr = &log, &log
	if err := srv.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = srv.Process.Kill()
		_ = srv.Wait()
	})
	for range 500 {
		if c, err := net.Dial("tcp", addr); err == nil {
			c.Close()
			return "http://" + addr
		}
		time.Sleep(20 * time.Millisecond)
	}
	t.Fatalf("versitygw does not listen:\n%s", log.String())
	return ""
}
