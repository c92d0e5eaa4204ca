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

// script makes all tries in one shell and marks each one's answer.
func script(program string, table []try) string {
	var b strings.Builder
	for i, a := range table {
		fmt.Fprintf(&b, "echo '== %d'; ", i)
		if a.weak == ajar && program != "./intruder" {
			b.WriteString("exec 9</etc/passwd; ")
		}
		b.WriteString(program + " " + a.name)
		for _, arg := range a.args {
			b.WriteString(" '" + arg + "'")
		}
		b.WriteString(" 2>&1; echo \"-- $?\"\n")
	}
	return b.String()
}

func verdicts(t *testing.T, out string, n int) map[int]verdict {
	t.Helper()
	got := map[int]verdict{}
	for part := range strings.SplitSeq("\n"+out, "\n== ") {
		number, rest, _ := strings.Cut(part, "\n")
		i, err := strconv.Atoi(number)
		if err != nil {
			continue
		}
		said, code, ok := strings.Cut(rest, "\n-- ")
		code, _, _ = strings.Cut(code, "\n")
		if !ok || (code != "0" && code != "1") {
			t.Errorf("try %d ended with %q: %s", i, code, said)
			continue
		}
		got[i] = verdict{code == "0", said}
	}
	if len(got) != n {
		t.Fatalf("%d verdicts of %d tries:\n%s", len(got), n, out)
	}
	return got
}

// weakened runs the tries in the set-ups with holes. Those that reach the
// kernel there are attacks that the sandbox, not the kernel, has to stop.
func weakened(t *testing.T, table []try) map[int]bool {
	t.Helper()
	shown := map[int]bool{}
	for i, a := range table {
		if a.weak == unshown {
			continue
		}
		shell := []string{"sh", "-c", script(intruderPath(t), []try{a}) + "true"}
		if a.weak == bare { // one set of namespaces each: a try may spoil them
			shell = append([]string{"unshare", "--mount", "--propagation=private", "--pid", "--fork", "--mount-proc", "--ipc", "--uts"}, shell...)
		}
		out, err := exec.Command(shell[0], shell[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", a.weak, err, out)
		}
		shown[i] = verdicts(t, string(out), 1)[0].succeeded
	}
	return shown
}

// TestAttackTable runs every try inside, as root's Worker and as an ordinary
// user's, under each profile that a caller may choose. None may succeed.
func TestAttackTable(t *testing.T) {
	testenv.Root(t)
	repo := trojan(t)
	for _, uid := range []int{0, rig.Ordinary} {
		p := rig.NewPlace(t, "disk", uid)
		src := p.Give(t, repo)
		y := p.Yoi(t)
		table := tries([]string{p.Dir, src.Dir, y.Root})
		shown := weakened(t, table)
		for _, profile := range []policy.SeccompProfile{policy.SeccompDefault, policy.SeccompStrict} {
			t.Run(fmt.Sprintf("uid %d/%s", uid, profile), func(t *testing.T) {
				r := inside(t, y, src, string(profile), table)
				for i, v := range verdicts(t, r.Stdout, len(table)) {
					a := table[i]
					if v.succeeded {
						t.Errorf("%s %s\n%s", a.name, strings.Join(a.args, " "), v.said)
					}
				}
			})
		}
		count := 0
		for i, a := range table {
			if shown[i] {
				count++
			} else if a.weak != unshown {
				t.Logf("not shown to succeed on this kernel: %s %s", a.name, strings.Join(a.args, " "))
			}
		}
		if count < len(table)*2/3 {
			t.Errorf("only %d of %d attacks were shown to succeed in a weakened sandbox", count, len(table))
		}
		rig.Clean(t, y.Root)
	}
}

// inside runs the table in the sandbox, started by a caller that is careless
// with its own descriptors and environment.
func inside(t *testing.T, y rig.Yoi, repo testenv.Repo, profile string, table []try) rig.Result {
	t.Helper()
	cmd := y.Cmd("run", "--repo", repo.Dir, "--seccomp", profile, "--", "sh", "-c", script("./intruder", table))
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
	cmd.ExtraFiles = []*os.File{passwd, dir} // not close-on-exec in the child
	cmd.Stdin = strings.NewReader("")
	return rig.Finish(t, cmd).Want(t, 0)
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
