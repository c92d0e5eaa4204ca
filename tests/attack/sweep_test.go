package attack

import (
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// planted is a host on which one word stands in everything that a Worker has no
// business with: the paths that lead there, and the contents.
type planted struct {
	word  string
	place rig.Place // its Dir has the word in it
	src   testenv.Repo
	y     rig.Yoi
}

// plant covers /run, /srv and /mnt in the suite's private mount namespace.
func plant(t *testing.T, repo testenv.Repo, fs string, uid int) planted {
	t.Helper()
	c := planted{word: fmt.Sprint("canary", testenv.RunID(), fs, uid), place: rig.NewPlace(t, fs, uid)}
	c.place.Dir = filepath.Join(c.place.Dir, c.word)
	dir := c.place.Dir
	for _, at := range []string{"/run", "/srv", "/mnt"} {
		if err := unix.Mount("tmpfs", at, "tmpfs", 0, "mode=755"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
				t.Error(err)
			}
		})
	}
	files := []string{
		dir + "/.ssh/id_ed25519", dir + "/.aws/credentials", dir + "/.netrc", dir + "/.git-credentials", dir + "/.config/gh/hosts.yml",
		dir + "/backend/store.db", dir + "/sibling/src/secret.c",
		"/srv/" + c.word + "/file", "/mnt/" + c.word, "/run/secrets/" + c.word, "/run/user/0/" + c.word,
	}
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f, []byte("the secret "+c.word+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range []string{dir + "/agent.sock", "/run/docker.sock", "/run/containerd.sock", "@" + c.word + "-x11"} {
		l, err := net.Listen("unix", s)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		if s[0] != '@' {
			if err := os.Chmod(s, 0o777); err != nil { // whoever can name it could use it
				t.Fatal(err)
			}
		}
	}
	rig.Command(t, "chown", "-hR", rig.Owner(uid), dir)
	c.src = c.place.Give(t, repo)
	c.y = c.place.Yoi(t)
	c.y.Env = append(c.y.Env, "SSH_AUTH_SOCK="+dir+"/agent.sock", "DOCKER_HOST=unix:///run/docker.sock", "TOKEN="+c.word, "XDG_RUNTIME_DIR=/run/user/0/"+c.word)
	return c
}

// errands makes git and the shell talk, into files that the sweep reads.
const errands = `cd /workspace/REPO; exec 2>/scratch/errors >/scratch/output; set -x
git config -l --show-origin --show-scope; git remote -v; git rev-parse --git-dir --show-toplevel --git-common-dir; git count-objects -v
git log -3 --format=fuller; git reflog; git stash list; git worktree list; git submodule status; git status; git fsck --connectivity-only
git fetch; git push; git pull; git clone /run/yoi/objects/REPO /tmp/c; git gc; git worktree add /scratch/w; git maintenance run; git bundle create /scratch/b HEAD
cat /proc/self/mountinfo; mount; df -a; ls -laR /run /scratch /home /var /workspace/REPO/.git; find / -xdev -newer /etc/passwd; ls /nowhere/; cd /workspace/REPO/../..; pwd -P
stat -f / /workspace/REPO /scratch /run/yoi/objects/REPO; env; id; ls -la /proc/self/fd /proc/self/map_files; :
`

// sweeping is what the Worker does in the workspace of a repository.
func (c planted) sweeping(repo string) []string {
	return []string{"sh", "-c", "(" + strings.ReplaceAll(errands, "REPO", repo) + ")\nexec /workspace/" + repo + "/intruder sweep " + hex.EncodeToString([]byte(c.word)) + " /"}
}

func (c planted) sweep(t *testing.T, repo string, args ...string) rig.Result {
	t.Helper()
	cmd := c.y.Cmd(append(append(args, "--"), c.sweeping(repo)...)...)
	cmd.Dir = c.place.Dir
	return rig.Finish(t, cmd)
}

// TestAttackSweep reads all that a Worker can open, of every strategy on the first
// file system that has it, as root and as an ordinary user. Neither the host's secrets nor the
// names of the paths to them are in it.
func TestAttackSweep(t *testing.T) {
	testenv.Root(t)
	repo := trojan(t)
	type sweptKey struct {
		strategy policy.StrategyName
		uid      int
	}
	swept := map[sweptKey]bool{}
	for _, fs := range rig.FileSystems() {
		for _, uid := range []int{0, rig.Ordinary} {
			c := plant(t, repo, fs, uid)
			// A workspace of somebody else's in the same Runtime root.
			c.y.OK(t, "run", "--keep", "--repo", c.src.Dir, "--", "sh", "-c", "echo 'the secret "+c.word+"' >secret.txt; git add secret.txt; git commit -qm "+c.word)
			for _, w := range c.place.Ways(t, c.y, c.src) {
				if swept[sweptKey{w.Strategy, uid}] {
					continue
				}
				swept[sweptKey{w.Strategy, uid}] = true
				t.Run(fmt.Sprintf("%s/%s", c.place, w.Strategy), func(t *testing.T) {
					r := c.sweep(t, w.ID, w.Run()...)
					if r.Code != 1 || !strings.HasPrefix(r.Stdout, "refused: ") {
						t.Errorf("exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
					}
				})
			}
			if fs == "ext4" {
				t.Run(fmt.Sprintf("%s/shown", c.place), c.found)
			}
			for _, ws := range workspaces(t, c.y) {
				c.y.OK(t, "ws", "rm", "--discard", ws)
			}
			rig.Clean(t, c.y.Root)
		}
	}
}

// TestAttackSweepBehindDaemons is the same for a Worker of the two daemons, which have
// sockets, logs and an environment of their own.
func TestAttackSweepBehindDaemons(t *testing.T) {
	testenv.Root(t)
	repo := trojan(t)
	for name, helperUID := range map[string]int{"privileged": 0, "user": rig.Ordinary} {
		t.Run(name, func(t *testing.T) {
			c := plant(t, repo, "ext4", rig.Ordinary)
			d := rig.NewDaemons(t, c.place, helperUID)
			d.HelperEnv = c.y.Env
			d.RuntimedEnv = c.y.Env
			d.Start(t)
			// A workspace of somebody else's, and what its Worker said.
			other := d.Workspace(t, c.src.Dir, nil)
			said := d.Spawn(t, other.ID, "echo 'the secret "+c.word+"' | tee secret.txt")
			if _, err := d.Client.WaitWorker(t.Context(), said.ID); err != nil {
				t.Fatal(err)
			}
			ws := d.Workspace(t, c.src.Dir, nil)
			w, err := d.Client.SpawnWorker(t.Context(), runtime.SpawnWorkerRequest{AllocationID: ws.ID, Command: c.sweeping("small")})
			if err != nil {
				t.Fatal(err)
			}
			ended, err := d.Client.WaitWorker(t.Context(), w.ID)
			if err != nil {
				t.Fatal(err)
			}
			var b strings.Builder
			if _, err := d.Client.WorkerLogs(t.Context(), w.ID, runtime.LogsRequest{}, &b); err != nil {
				t.Fatal(err)
			}
			if ended.Outcome == nil || ended.Outcome.ExitCode != 1 || !strings.HasPrefix(b.String(), "refused: ") {
				t.Errorf("%+v\n%s", ended.Outcome, b.String())
			}
			for _, id := range []policy.AllocationID{other.ID, ws.ID} {
				if _, err := d.Client.RemoveWorkspace(t.Context(), id, runtime.RemoveWorkspaceRequest{Discard: true}); err != nil {
					t.Error(err)
				}
			}
			d.Stop(t)
			rig.Clean(t, d.Root)
		})
	}
}

// found shows that the sweep finds what is there: a source that is mounted as it
// is has its path in mountinfo, and on the host there is everything.
func (c planted) found(t *testing.T) {
	r := c.sweep(t, "small", "run", "--repo", c.src.Dir, "--dirty", "direct_legacy_mount")
	if r.Code != 0 || !strings.Contains(r.Stdout, "mountinfo") {
		t.Errorf("with a bind mount: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
	for _, top := range []string{c.place.Dir + "/.aws", "/srv", "/run", "/proc/self/", "/proc/net/"} {
		cmd := exec.Command(intruderPath(t), "sweep", hex.EncodeToString([]byte(c.word)), top)
		cmd.Dir = c.place.Dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("on the host, in %s: %s", top, out)
		}
	}
}
