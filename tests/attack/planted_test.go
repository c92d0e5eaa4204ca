package attack

import (
	"context"
	_ "embed"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

//go:embed testdata/plant.sh
var plantScript string

const yoiUser = 64400

// canary is a directory of the host's that anybody may write to, and that
// nobody must.
type canary struct {
	dir    string
	before []string
}

func newCanary(t *testing.T) *canary {
	t.Helper()
	dir, err := os.MkdirTemp("", "canary")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o777); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"file", "sub/file", "objects/ab/cdef"} {
		p := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(p), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("canary\n"), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return &canary{dir, rig.Contents(t, dir)}
}

func (c *canary) sings(t *testing.T) {
	t.Helper()
	for _, d := range rig.Difference(c.before, rig.Contents(t, c.dir)) {
		t.Errorf("the host was touched: %s", d)
	}
}

// room is a workspace of the daemon's and what an attacker does in it.
type room struct {
	d  *rig.Daemons
	ws policy.AllocationID
}

func newRoom(t *testing.T, strategy policy.StrategyName) room {
	t.Helper()
	testenv.Root(t)
	p := rig.NewPlace(t, "disk", yoiUser)
	d := rig.StartDaemons(t, p, 0)
	repo, err := d.Client.AddRepository(t.Context(), runtime.AddRepositoryRequest{Source: p.Give(t, testenv.RepoSmall(t)).Dir})
	if err != nil {
		t.Fatal(err)
	}
	ws, err := d.Client.CreateWorkspace(t.Context(), runtime.CreateWorkspaceRequest{Repositories: []runtime.RepositoryRequest{{RepositoryID: repo.ID}}, Strategy: strategy})
	if err != nil {
		t.Fatalf("%v\n%s", err, d.Helper.Log())
	}
	return room{d, ws.ID}
}

// work runs a script in the workspace, which must succeed.
func (r room) work(t *testing.T, script string, args ...string) {
	t.Helper()
	w, err := r.d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: r.ws, Command: append([]string{"sh", "-c", script, "sh"}, args...)})
	if err == nil {
		w, err = r.d.Client.WaitWorker(t.Context(), w.ID)
	}
	if err != nil || w.Outcome == nil || w.Outcome.ExitCode != 0 {
		var out strings.Builder
		_, _ = r.d.Client.WorkerLogs(t.Context(), w.ID, runtime.LogsRequest{Stream: "stderr"}, &out) // for the message only
		t.Fatalf("the attacker's own script failed: %+v, %v\n%s", w.Outcome, err, out.String())
	}
}

// tree is where the workspace's files are on the host.
func (r room) tree() string {
	base := filepath.Join(r.d.Root, "execution-workspaces", string(r.ws))
	if upper := filepath.Join(base, "mounts/small/upper"); exists(upper) {
		return upper
	}
	return filepath.Join(base, "root/small")
}

func exists(p string) bool {
	_, err := os.Lstat(p)
	return err == nil
}

// results asks for everything that can be taken out of the workspace. It may be
// refused, by a diagnostic and soon.
func (r room) results(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	c := r.d.Client
	for name, ask := range map[string]func() error{
		"diff":    func() error { _, err := c.DiffWorkspace(ctx, r.ws, runtime.ResultRequest{}); return err },
		"status":  func() error { _, err := c.StatusWorkspace(ctx, r.ws, runtime.ResultRequest{}); return err },
		"commits": func() error { _, err := c.WorkspaceCommits(ctx, r.ws, runtime.CommitsRequest{}); return err },
		"patch":   func() error { return r.export(ctx, runtime.ExportPatch) },
		"bundle":  func() error { return r.export(ctx, runtime.ExportBundle) },
		"tar":     func() error { return r.export(ctx, runtime.ExportTar) },
		"fork": func() error {
			ws, err := c.ForkWorkspace(ctx, r.ws, runtime.ForkRequest{})
			if err == nil {
				_, err = c.RemoveWorkspace(ctx, ws.ID, runtime.RemoveWorkspaceRequest{Discard: true})
			}
			return err
		},
		"collect": func() error {
			_, err := c.CollectWorkspace(ctx, r.ws, runtime.CollectRequest{As: "evil", Uncommitted: true})
			if err == nil {
				err = c.DropCollected(ctx, "small", runtime.CollectedRequest{Name: "evil"})
			}
			return err
		},
	} {
		err := ask()
		if err == nil || errors.Is(err, policy.CodeWorkspaceUnreadable) || errors.Is(err, policy.CodeNothingToCollect) || errors.Is(err, policy.CodeSelectorMissing) {
			continue
		}
		t.Errorf("%s: %v\n%s", name, err, r.d.Runtimed.Log())
	}
}

func (r room) export(ctx context.Context, f runtime.ExportFormat) error {
	_, err := r.d.Client.ExportWorkspace(ctx, r.ws, runtime.ExportRequest{Format: f}, io.Discard)
	return err
}

// end takes what there is out of the workspace and removes it: first asking, which makes the Runtime look at the
// attacker's git directory, then anyhow.
func (r room) end(t *testing.T) {
	t.Helper()
	r.results(t)
	// A Worker's tree must not be able to hold the Runtime up for long either.
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	_, err := r.d.Client.RemoveWorkspace(ctx, r.ws, runtime.RemoveWorkspaceRequest{})
	if err != nil && policy.AsDiagnostic(err).Code != policy.CodeUncollectedWork {
		t.Errorf("removal without discard: %v", err)
	}
	if _, err := r.d.Client.GC(ctx, runtime.GCRequest{}); err != nil {
		t.Errorf("gc: %v", err)
	}
	if _, err := r.d.Client.RemoveWorkspace(t.Context(), r.ws, runtime.RemoveWorkspaceRequest{Discard: true, Stop: true}); err != nil {
		t.Errorf("removal: %v\n%s\n%s", err, r.d.Runtimed.Log(), r.d.Helper.Log())
	}
	r.d.Stop(t)
	rig.Clean(t, r.d.Root)
}

// TestAttackPlantedGit shows first that the host's git would run the planted
// programs, then that the Runtime, which has to know whether there is
// uncollected work, runs none of them on the host.
func TestAttackPlantedGit(t *testing.T) {
	testenv.Root(t)
	for _, s := range []policy.StrategyName{policy.StrategyCopy, policy.StrategyOverlay, policy.StrategyGitWorktree} {
		t.Run(string(s), func(t *testing.T) {
			c := newCanary(t)
			r := newRoom(t, s)
			r.work(t, plantScript, c.dir)
			c.sings(t) // the Worker itself does not reach it
			if s == policy.StrategyCopy {
				springs(t, r.tree(), c)
			}
			r.end(t)
			c.sings(t)
		})
	}
}

// springs runs the host's git on a copy of the planted tree, as a careless
// runtime would, and wants the traps to go off.
func springs(t *testing.T, tree string, c *canary) {
	t.Helper()
	victim := filepath.Join(t.TempDir(), "victim")
	rig.Command(t, "cp", "-a", "--no-preserve=ownership", tree, victim)
	out, _ := exec.Command("sh", "-c", `cd "$1" && : >.git/objects/info/alternates
		git status; git diff; git add -A; git log -1 -p; git fetch ssh://nowhere/x; git checkout -f HEAD -- .; cd bare && git status; :`, "sh", victim).CombinedOutput() // they fail, having run the traps
	sprung := rig.Difference(c.before, rig.Contents(t, c.dir))
	for _, must := range []string{"fsmonitor", "clean", "ssh", "hook-post-index-change", "bare-fsmonitor"} {
		if !strings.Contains(strings.Join(sprung, "\n"), "/"+must+`"`) {
			t.Errorf("the trap %s does not go off even on the host: the test proves nothing\n%s", must, out)
		}
	}
	rig.Command(t, "find", c.dir, "-maxdepth", "1", "-type", "f", "!", "-name", "file", "-delete")
	c.sings(t)
}

// TestAttackSwappedGitDirectory: the .git of the workspace is exchanged for
// something that leads elsewhere.
func TestAttackSwappedGitDirectory(t *testing.T) {
	testenv.Root(t)
	for name, script := range map[string]string{
		"pointer to a host repository": `mv .git /scratch/g; echo "gitdir: $1/repo/.git" >.git`,
		"link to the host":             `mv .git /scratch/g; ln -s "$1" .git`,
		"link to the scratch":          `mv .git /scratch/g; ln -s /scratch/g .git`,
		"objects linked to the host":   `mv .git/objects /scratch/o; ln -s "$1/objects" .git/objects`,
		"pack linked to the host":      `rm -rf .git/objects/pack; ln -s "$1/objects" .git/objects/pack`,
		"index linked to the host":     `ln -sf "$1/file" .git/index`,
		"HEAD linked to the host":      `ln -sf "$1/file" .git/HEAD`,
		"a pipe as index":              `rm .git/index; mkfifo .git/index`,
		"a pipe as HEAD":               `rm .git/HEAD; mkfifo .git/HEAD`,
		"a pipe as configuration":      `rm .git/config; mkfifo .git/config`,
		"alternates of the host":       `echo "$1/repo/.git/objects" >.git/objects/info/alternates`,
		"no git directory":             `rm -rf .git`,
		"nothing at all":               `rm -rf .git * .[!.]*`,
		"a worktree of the host's":     `git config core.worktree "$1"`,
		"a huge index":                 `rm .git/index; truncate -s 8T .git/index 2>/dev/null || truncate -s 1G .git/index`,
	} {
		t.Run(name, func(t *testing.T) {
			c := newCanary(t)
			repo := testenv.RepoSmall(t)
			rig.Command(t, "cp", "-a", repo.Dir, filepath.Join(c.dir, "repo"))
			c.before = rig.Contents(t, c.dir)
			r := newRoom(t, policy.StrategyCopy)
			r.work(t, script, c.dir)
			r.end(t)
			c.sings(t)
		})
	}
}

// TestAttackPlantedLinks leaves links and awkward things where a later launch
// or the removal walks.
func TestAttackPlantedLinks(t *testing.T) {
	testenv.Root(t)
	for _, s := range []policy.StrategyName{policy.StrategyCopy, policy.StrategyOverlay} {
		t.Run(string(s), func(t *testing.T) {
			c := newCanary(t)
			r := newRoom(t, s)
			r.work(t, `set -e
				rm -rf src && ln -s "$1" src
				ln -s "$1/file" plain && ln -s "$1" "new
line" && ln -s / rootlink && ln -s ../../../../../.. up
				mkfifo pipe
				mkdir locked && mkdir locked/in && touch locked/in/f && chmod 000 locked/in locked
				mkdir -p $(printf 'd/%.0s' $(seq 1 900)) && touch "$(printf '\377\376')"
				ln README.md hard && chmod 4755 hard
				ln -s "$1" /scratch/link && mkdir -p /scratch/.git && ln -s "$1" /scratch/.git/objects
				chmod 000 /scratch`, c.dir)
			for cwd, code := range map[string]policy.Code{
				"src": policy.CodeCwdSymlinkEscape, "src/sub": policy.CodeCwdSymlinkEscape, "rootlink": policy.CodeCwdSymlinkEscape,
				"up": policy.CodeCwdSymlinkEscape, "plain": policy.CodeCwdSymlinkEscape, "pipe": policy.CodeCwdNotDirectory,
			} {
				_, err := r.d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: r.ws, Command: []string{"true"}, RelativeCwd: cwd})
				if policy.AsDiagnostic(err) == nil || policy.AsDiagnostic(err).Code != code {
					t.Errorf("relative_cwd %s: %v, want %s", cwd, err, code)
				}
			}
			r.work(t, `test -e README.md`) // a launch on the planted tree still works
			r.end(t)
			c.sings(t)
		})
	}
}
