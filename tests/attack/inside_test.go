package attack

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

// intruder is the built program.
var intruder = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "intruder")
	if err != nil {
		return "", err
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		return "", err
	}
	out := filepath.Join(dir, "intruder")
	cmd := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w", "-o", out, "./intruder")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the intruder: %w\n%s", err, text)
	}
	return out, nil
})

func intruderPath(t *testing.T) string {
	t.Helper()
	path, err := intruder()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// trojan is a repository that holds the intruder.
func trojan(t *testing.T) testenv.Repo {
	t.Helper()
	b, err := os.ReadFile(intruderPath(t))
	if err != nil {
		t.Fatal(err)
	}
	return testenv.Commit(t, testenv.RepoSmall(t), "a present", map[string]*testenv.Entry{"intruder": {Mode: "100755", Data: string(b)}})
}

// verdict is what an attack said.
type verdict struct {
	succeeded bool
	said      string
}

// script makes the tries of those numbers in one shell and marks each answer.
func script(program string, table []try, which []int) string {
	var b strings.Builder
	for _, i := range which {
		fmt.Fprintf(&b, "echo '== %d'; %s %s", i, program, table[i].name)
		for _, arg := range table[i].args {
			b.WriteString(" '" + arg + "'")
		}
		b.WriteString(" 2>&1; echo \"-- $?\"\n")
	}
	return b.String()
}

func verdicts(t *testing.T, out string, which []int) map[int]verdict {
	t.Helper()
	got := map[int]verdict{}
	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		number, rest, _ := strings.Cut(part, "\n")
		i, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		end := strings.LastIndex("\n"+rest, "\n-- ")
		if end < 0 {
			t.Errorf("try %d did not end: %s", i, rest)
			continue
		}
		said, code := rest[:end], strings.TrimSpace(rest[end+len("-- "):])
		if code != "0" && code != "1" {
			t.Errorf("try %d ended with %q: %s", i, code, said)
			continue
		}
		got[i] = verdict{code == "0", said}
	}
	if len(got) != len(which) {
		t.Fatalf("%d verdicts of %d tries:\n%s", len(got), len(which), out)
	}
	return got
}

// unsandboxed makes the tries that no weakened sandbox lets through where there is
// none, and adds those that succeeded to shown.
func unsandboxed(t *testing.T, dir string, table []try, shown map[int]bool) {
	t.Helper()
	for i, a := range table {
		if a.weak[0] != bare && a.weak[0] != host {
			continue
		}
		shell := []string{"sh", "-c", script(intruderPath(t), table, []int{i}) + "true"}
		if a.weak[0] == bare { // one set of namespaces each: a try may spoil them
			shell = append([]string{"unshare", "--mount", "--propagation=private", "--pid", "--fork", "--mount-proc", "--ipc", "--uts"}, shell...)
		}
		cmd := exec.Command(shell[0], shell[1:]...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "SECRET_TOKEN="+rig.Canary)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", a.weak, err, out)
		}
		if verdicts(t, string(out), []int{i})[i].succeeded {
			shown[i] = true
		}
	}
}

// weakened makes the tries in sandboxes that lack what would stop them, and adds
// those that succeeded to shown.
func weakened(t *testing.T, y rig.Yoi, repo testenv.Repo, table []try, shown map[int]bool) {
	t.Helper()
	for _, which := range sets(table) {
		set := strings.Join(table[which[0]].weak, ",")
		weak := y
		weak.Program = rig.Program(t, "yoi", "attacktest")
		weak.Env = append(weak.Env, "YOI_WEAKEN="+set)
		r := inside(t, weak, repo, "default", table, which)
		for i, v := range verdicts(t, r.Stdout, which) {
			if v.succeeded {
				shown[i] = true
			} else {
				t.Logf("as uid %d without %s: %s: %s", y.UID, set, table[i], strings.TrimSpace(v.said))
			}
		}
	}
}

// TestAttackTable runs every try inside, as root's Worker and as an ordinary
// user's, under each profile that a caller may choose: none may succeed. And each
// must succeed in a sandbox that lacks what stops it, or it proves nothing.
func TestAttackTable(t *testing.T) {
	testenv.Root(t)
	repo := trojan(t)
	shown := map[int]bool{}
	var table []try
	var dir string // one of the secrets
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		src := p.Give(t, repo)
		y := p.Yoi(t)
		dir = p.Dir
		table = tries([]string{p.Dir, src.Dir, y.Root})
		var which []int
		for i := range table {
			which = append(which, i)
		}
		for _, profile := range []policy.SeccompProfile{policy.SeccompDefault, policy.SeccompStrict, policy.SeccompAudit} {
			t.Run(fmt.Sprintf("uid %d/%s", uid, profile), func(t *testing.T) {
				r := inside(t, y, src, string(profile), table, which)
				for i, v := range verdicts(t, r.Stdout, which) {
					if v.succeeded {
						t.Errorf("%s\n%s", table[i], v.said)
					}
				}
			})
		}
		weakened(t, y, src, table, shown)
		rig.Clean(t, y.Root)
	}
	unsandboxed(t, dir, table, shown)
	for i, a := range table {
		if !shown[i] && a.weak[0] != unshown {
			t.Errorf("no sandbox without %s lets it succeed, so it cannot fail: %s", strings.Join(a.weak, ", "), a)
		}
	}
}

// inside makes tries in the sandbox, started by a caller that is careless with its
// own descriptors, groups and environment.
func inside(t *testing.T, y rig.Yoi, repo testenv.Repo, profile string, table []try, which []int) rig.Result {
	t.Helper()
	cmd := y.Cmd("run", "--repo", repo.Dir, "--seccomp", profile, "--", "sh", "-c", script("/workspace/small/intruder", table, which))
	passwd, err := os.Open("/etc/passwd")
	if err != nil {
		t.Fatal(err)
	}
	defer passwd.Close()
	dir, err := os.Open("/")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	mail := letter(t, passwd)
	defer mail.Close()
	cmd.ExtraFiles = []*os.File{passwd, dir, mail} // 3, 4 and 5, not close-on-exec in the child
	if y.UID == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Groups: []uint32{4, 24}}
	}
	cmd.Stdin = strings.NewReader("")
	return rig.Finish(t, cmd).Want(t, 0)
}

// letter is a socket in which a descriptor waits.
func letter(t *testing.T, f *os.File) *os.File {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sender := os.NewFile(uintptr(pair[0]), "sender")
	defer sender.Close()
	if err := unix.Sendmsg(pair[0], []byte("x"), unix.UnixRights(int(f.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(pair[1]), "letter")
}

// TestAttackKillEverything: the Worker kills all that it can, and that is the
// Worker. Its outcome is told, and nobody else is hurt.
func TestAttackKillEverything(t *testing.T) {
	testenv.Root(t)
	repo := trojan(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		src := p.Give(t, repo)
		y := p.Yoi(t)
		bystander := testenv.UserCommand(t, rig.Ordinary, "sleep", "60")
		if err := bystander.Start(); err != nil {
			t.Fatal(err)
		}
		r := y.Run(t, "run", "--repo", src.Dir, "--", "sh", "-c", "sleep 50 & ./intruder kill-everything; sleep 1; exit 3")
		if r.Code != 137 && r.Code != 3 {
			t.Errorf("exit %d\n%s", r.Code, r.Stderr)
		}
		if err := bystander.Process.Signal(syscall.Signal(0)); err != nil {
			t.Errorf("the bystander is dead: %v", err)
		}
		_ = bystander.Process.Kill()
		_ = bystander.Wait() // killed by us
		rig.Clean(t, y.Root)
	}
}

// TestAttackOutlive: a Worker that will not end with its caller ends with it. Outside
// of a sandbox the same program stays.
func TestAttackOutlive(t *testing.T) {
	testenv.Root(t)
	program := intruderPath(t)
	for _, uid := range []int{0, rig.Ordinary} {
		s := newStand(t, uid)
		for name, cmd := range map[string]*exec.Cmd{
			"outside": exec.Command("sh", "-c", "setpriv --pdeathsig KILL "+program+" outlive $0; :"),
			"inside":  s.y.Cmd("run", "--repo", s.repo.Dir, "--", "./intruder", "outlive"),
		} {
			mark := fmt.Sprintf("%s-%s-%d", testenv.RunID(), name, uid)
			cmd.Args = append(cmd.Args, mark)
			if line := rig.Begin(t, cmd); line != "here\n" {
				t.Fatalf("%s it says %q", name, line)
			}
			pid := marked(mark)
			if pid == 0 {
				t.Fatalf("%s: it is not there", name)
			}
			_ = cmd.Process.Kill()
			_ = cmd.Wait() // killed
			if name == "outside" {
				if marked(mark) != pid {
					t.Error("even without a sandbox it ends: this proves nothing")
				}
				_ = syscall.Kill(pid, syscall.SIGKILL) // this test's own, by its mark
				continue
			}
			rig.Eventually(t, "the Worker has ended", func() bool { return marked(mark) == 0 })
		}
		s.y.OK(t, "gc")
		rig.Clean(t, s.y.Root)
	}
}

// marked is the intruder that has the mark for its last argument, or 0.
func marked(mark string) int {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, _ := os.ReadFile(f)
		if args := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00"); args[len(args)-1] == mark && strings.HasSuffix(args[0], "intruder") {
			pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			return pid
		}
	}
	return 0
}
