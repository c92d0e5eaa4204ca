package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// limited runs an attack under a limit, where it must fail, and in a sandbox
// without limits, where it must succeed.
func (s stand) limited(t *testing.T, flag string, attack ...string) {
	t.Helper()
	run := func(y rig.Yoi) rig.Result {
		return y.Run(t, append([]string{"run", "--repo", s.repo.Dir, flag, "--", "./intruder"}, attack...)...)
	}
	if r := run(s.y); r.Code != 1 || !strings.HasPrefix(r.Stdout, "refused: ") {
		t.Errorf("%q: exit %d\n%s%s", attack, r.Code, r.Stdout, r.Stderr)
	}
	weak := s.y
	weak.Program = rig.Program(t, "yoi", "attacktest")
	weak.Env = append(weak.Env, "YOI_WEAKEN=rlimits,user-limits")
	if r := run(weak); r.Code != 0 {
		t.Errorf("%q does not even succeed without limits: exit %d\n%s%s", attack, r.Code, r.Stdout, r.Stderr)
	}
}

// TestAttackResources: what a Worker could use up, within bounds that do the
// machine no harm where the limit is missing.
func TestAttackResources(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			s := newStand(t, uid)
			s.limited(t, "--limit=processes=100", "fork-many", "300")
			s.limited(t, "--limit=open_files=256", "open-many", "1000")
			r := s.y.Run(t, "run", "--repo", s.repo.Dir, "--", "./intruder", "zombies", "2000")
			if r.Code != 1 || r.Stdout != "refused: all are reaped\n" {
				t.Errorf("exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
			}
			// A real bomb, which the wall clock ends; whatever it started is gone then.
			r = s.y.Run(t, "run", "--json", "--repo", s.repo.Dir, "--limit", "processes=150", "--timeout", "2s", "--",
				"sh", "-c", `trap "" TERM INT HUP QUIT; bomb() { bomb 2>/dev/null & bomb 2>/dev/null & }; bomb 2>/dev/null; while :; do sleep 1; done`)
			var ev runtime.Evidence
			r.Want(t, 137).JSON(t, &ev)
			if o := ev.Workers[0].Outcome; o == nil || !o.TimedOut || o.Lost {
				t.Errorf("the bomb's outcome: %+v", o)
			}
			rig.Clean(t, s.y.Root)
		})
	}
}

// TestAttackUserCounts: what the kernel counts by user it counts for the maker of a user namespace,
// too. A Worker that takes all that it gets leaves some to its caller and
// to its neighbours.
func TestAttackUserCounts(t *testing.T) {
	testenv.Root(t)
	instances := inotifyInstances(t)
	for _, uid := range []int{0, rig.Ordinary} {
		t.Run(fmt.Sprint(uid), func(t *testing.T) {
			s := newStand(t, uid)
			s.limited(t, "--seccomp=default", "inotify-many", strconv.Itoa(min(instances/4, 128)+1))
			s.limited(t, "--seccomp=default", "queue-many", "5000")
			s.limited(t, "--seccomp=nested", "namespaces-many", "1100")
			rig.Clean(t, s.y.Root)
		})
	}
}

// inotifyInstances is how many a user of the host may have.
func inotifyInstances(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/user/max_inotify_instances")
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestAttackUserCountsTogether: Workers that each take all that one gets, at once, take
// nothing from root or from another Worker: each is a user of the host of its own, and
// is counted as that one only.
func TestAttackUserCountsTogether(t *testing.T) {
	s := newStand(t, 0)
	t.Cleanup(func() { rig.Clean(t, s.y.Root) }) // when all have ended
	most := inotifyInstances(t)
	for range min(most/min(most/4, 128)+2, 20) {
		cmd := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "./intruder", "inotify-hold", "1000")
		line := rig.Begin(t, cmd)
		t.Cleanup(func() {
			_ = cmd.Process.Signal(syscall.SIGTERM)
			_ = cmd.Wait() // ended by us
		})
		if !strings.HasPrefix(line, "holding ") || line == "holding 0\n" {
			t.Errorf("a Worker says %q", line)
		}
	}
	if fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err != nil {
		t.Errorf("nothing is left for root: %v", err)
	} else {
		unix.Close(fd)
	}
	if r := s.y.Run(t, "run", "--repo", s.repo.Dir, "--", "./intruder", "inotify-many", "5"); r.Code != 0 {
		t.Errorf("another Worker: exit %d\n%s%s", r.Code, r.Stdout, r.Stderr)
	}
}

// TestAttackManyInodes: a Worker leaves a hundred thousand files. Its end is told, what it left is
// told up to a limit, and it is removed.
func TestAttackManyInodes(t *testing.T) {
	s := newStand(t, rig.Ordinary)
	s.y.OK(t, "repo", "add", "--id", "app", s.repo.Dir)
	var ws, w struct{ ID string }
	s.y.Run(t, "ws", "create", "--json", "app").Want(t, 0).JSON(t, &ws)
	s.y.Run(t, "worker", "spawn", "--json", ws.ID, "--", "./intruder", "inodes", "100000").Want(t, 0).JSON(t, &w)
	run := func(args ...string) rig.Result { // longer than rig's commands may take
		cmd := s.y.Cmd(args...)
		var stdout, stderr strings.Builder
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		_ = cmd.Run() // its state has the code
		return rig.Result{Args: args, Stdout: stdout.String(), Stderr: stderr.String(), Code: cmd.ProcessState.ExitCode()}
	}
	run("worker", "wait", w.ID).Want(t, 0)
	if out := s.y.OK(t, "worker", "logs", w.ID); !strings.HasPrefix(out, "SUCCEEDED") {
		t.Errorf("it says %s", out)
	}
	run("ws", "diff", "--max-bytes", "1000000", ws.ID).Refused(t, 1, policy.CodeResultTooLarge)
	run("ws", "rm", ws.ID).Refused(t, 1, policy.CodeUncollectedWork)
	run("ws", "rm", "--discard", ws.ID).Want(t, 0)
	rig.Clean(t, s.y.Root)
}

// TestAttackTerminals: a Worker takes all the terminals there are; the host has
// some left (pty_reserve, Documentation/filesystems/devpts.rst).
func TestAttackTerminals(t *testing.T) {
	s := newStand(t, 0)
	cmd := s.y.Cmd("run", "--repo", s.repo.Dir, "--", "./intruder", "ptys")
	in := rig.Stdin(t, cmd)
	var n int
	line := rig.Begin(t, cmd)
	if _, err := fmt.Sscanf(line, "holding %d", &n); err != nil || n == 0 {
		t.Errorf("%q", line)
	}
	master, slave := openTerminal(t)
	master.Close()
	slave.Close()
	in.Close()
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	t.Logf("it had %d", n)
}

// TestAttackOverlayMarks: overlayfs takes attributes of a workspace's files for its
// own marks. A Worker that writes them makes no later launch see other files
// than there are, nor the host.
func TestAttackOverlayMarks(t *testing.T) {
	testenv.Root(t)
	for _, strategy := range []policy.StrategyName{policy.StrategyOverlay, policy.StrategyCopy} {
		t.Run(string(strategy), func(t *testing.T) {
			r := newRoom(t, strategy)
			r.work(t, `mkdir evil && touch evil/own
				for a in opaque=y redirect=/src redirect=/ metacopy= origin=x whiteout=y impure=y; do
					for d in evil README.md src .; do setfattr -n user.overlay."${a%=*}" -v "${a#*=}" "$d" 2>/dev/null || true; done
				done
				mknod wh c 0 0 2>/dev/null && exit 9
				: >README.md; ls -A >/scratch/listing`)
			r.work(t, `test "$(echo evil/*)" = evil/own && test ! -s README.md && test -e src/main.c && ls -A | cmp - /scratch/listing`)
			// As the Runtime looks at it: by name, of the point's tree.
			d, err := r.d.Client.DiffWorkspace(t.Context(), r.ws, runtime.ResultRequest{})
			if err != nil || len(d.Repositories) != 1 {
				t.Fatalf("%+v %v", d, err)
			}
			var changed []string
			for _, f := range d.Repositories[0].Files {
				changed = append(changed, f.Path)
			}
			if got := strings.Join(changed, " "); got != "README.md evil/own" {
				t.Errorf("changed: %s", got)
			}
			r.end(t)
		})
	}
}

// TestAttackLeftForTheHost: what a Worker leaves in its workspace is owned by the
// Runtime root's user, setuid bit and all. Nobody else of the host's reaches it.
func TestAttackLeftForTheHost(t *testing.T) {
	testenv.Root(t)
	for _, uid := range []int{0, rig.Ordinary} {
		for _, strategy := range []string{"overlay", "copy"} {
			t.Run(fmt.Sprintf("%d/%s", uid, strategy), func(t *testing.T) {
				s := newStand(t, uid)
				s.y.OK(t, "run", "--keep", "--strategy", strategy, "--repo", s.repo.Dir, "--", "sh", "-c",
					"cp intruder planted; chmod 4755 planted; mkdir open; chmod 2777 open; cp planted open/; cp planted /scratch/; chmod 4755 open/planted /scratch/planted")
				found := strings.Fields(rig.Command(t, "find", s.y.Root, "-name", "planted", "-perm", "-4000"))
				if len(found) == 0 {
					t.Error("nothing was planted: this proves nothing")
				}
				for _, f := range found {
					if out, err := testenv.UserCommand(t, 64333, f, "uid").CombinedOutput(); err == nil || !strings.Contains(err.Error(), "permission denied") {
						t.Errorf("%s can be run by another user: %v\n%s", strings.TrimPrefix(f, s.y.Root), err, out)
					}
				}
				// Nor does it leave by an archive.
				ws := onlyWorkspace(t, s.y)
				tar := filepath.Join(t.TempDir(), "x.tar")
				b := s.y.OK(t, "ws", "export", "--tar", ws)
				if err := os.WriteFile(tar, []byte(b), 0o600); err != nil {
					t.Fatal(err)
				}
				list, err := exec.Command("tar", "-tvf", tar).CombinedOutput()
				if err != nil || !strings.Contains(string(list), "planted") {
					t.Errorf("%v\n%s", err, list)
				}
				for line := range strings.Lines(string(list)) {
					if strings.ContainsAny(line[:10], "sS") {
						t.Errorf("exported: %s", line)
					}
				}
				s.y.OK(t, "ws", "rm", "--discard", ws)
				rig.Clean(t, s.y.Root)
			})
		}
	}
}

func onlyWorkspace(t *testing.T, y rig.Yoi) string {
	t.Helper()
	ids := workspaces(t, y)
	if len(ids) != 1 {
		t.Fatalf("workspaces: %q", ids)
	}
	return ids[0]
}

func workspaces(t *testing.T, y rig.Yoi) (ids []string) {
	t.Helper()
	var list struct{ Items []struct{ ID string } }
	y.Run(t, "ws", "list", "--json").Want(t, 0).JSON(t, &list)
	for _, w := range list.Items {
		ids = append(ids, w.ID)
	}
	return ids
}
