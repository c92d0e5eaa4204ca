package testenv

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func itoa(n int) string { return strconv.Itoa(n) }

// misbehave is what the test binary does when it is started as a package whose
// tests leave something behind; see TestSupervisor.
const envMisbehave = "YOI_TESTENV_MISBEHAVE"

func TestMisbehave(t *testing.T) {
	how := os.Getenv(envMisbehave)
	if how == "" {
		return // only meaningful when TestSupervisor starts it
	}
	Root(t)
	fmt.Println("run id:", RunID())
	switch how {
	case "process":
		orphan(t)
	case "crash":
		FS(t, "ext4", 8)
		unix.Kill(os.Getpid(), unix.SIGKILL)
	case "busy":
		f, err := os.Create(filepath.Join(FS(t, "ext4", 8), "open"))
		if err != nil {
			t.Fatal(err)
		}
		defer runtimeKeep(f)
	case "exit":
		os.Exit(7)
	case "hang":
		FS(t, "btrfs", 128)
		fmt.Println("hanging")
		time.Sleep(time.Minute)
	}
}

var kept []*os.File

func runtimeKeep(f *os.File) { kept = append(kept, f) }

// orphan leaves a grandchild whose parent is gone.
func orphan(t *testing.T) {
	cmd := exec.Command("sh", "-c", "sleep 300 & exit 0")
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
}

// outside starts this test binary as `go test` would: in the machine's mount
// namespace, as far as an inner process can reach it.
func outside(t *testing.T, how string, env ...string) *exec.Cmd {
	t.Helper()
	Root(t)
	// The supervisor's namespace is the machine's; nsenter(1) is in util-linux,
	// which Debian cannot be without.
	cmd := exec.Command("nsenter", "--mount=/proc/"+itoa(os.Getppid())+"/ns/mnt", "--wdns="+t.TempDir(),
		visible(t), "-test.run=^TestMisbehave$", "-test.v=true")
	cmd.Env = append(os.Environ(), envMisbehave+"="+how, "TMPDIR="+t.TempDir())
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// visible is a copy of the binary that the machine's namespace sees too.
func visible(t *testing.T) string {
	dst := filepath.Join(t.TempDir(), "binary.test")
	if out, err := exec.Command("cp", testBinary(t), dst).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return dst
}

func TestSupervisor(t *testing.T) {
	Root(t)
	for _, c := range []struct {
		how  string
		code int
		say  string
	}{
		{"nothing", 0, "PASS"},
		{"process", 1, "testenv: LEAK: process "},
		{"crash", 128 + 9, "killed by killed"},
		{"busy", 1, "the test left a file open"},
		{"exit", 7, "run id"},
	} {
		t.Run(c.how, func(t *testing.T) {
			out, err := outside(t, c.how).CombinedOutput()
			code := 0
			var e *exec.ExitError
			if errors.As(err, &e) {
				code = e.ExitCode()
			}
			if code != c.code || !strings.Contains(string(out), c.say) {
				t.Fatalf("exit %d, want %d and %q in:\n%s", code, c.code, c.say, out)
			}
			nothingLeft(t, string(out))
		})
	}
}

// nothingLeft takes the run id from the output and looks at the machine. A loop
// device detaches behind the exit.
func nothingLeft(t *testing.T, out string) {
	t.Helper()
	_, rest, ok := strings.Cut(out, "run id: ")
	if !ok {
		t.Fatalf("no run id in:\n%s", out)
	}
	id, _, _ := strings.Cut(rest, "\n")
	left := leakedLoops(id)
	for deadline := time.Now().Add(20 * time.Second); len(left) > 0 && time.Now().Before(deadline); left = leakedLoops(id) {
		time.Sleep(10 * time.Millisecond)
	}
	for _, l := range left {
		t.Error(l)
	}
	b, err := os.ReadFile("/proc/" + itoa(os.Getppid()) + "/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(b), id) {
		t.Errorf("mounts of %s left", id)
	}
}

// A killed supervisor takes the tests, their mounts and loop devices along;
// its directory is left, and the next run's sweep removes it.
func TestSupervisorKilled(t *testing.T) {
	cmd := outside(t, "hang")
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	buf, n := make([]byte, 4096), 0
	for !strings.Contains(string(buf[:n]), "hanging") {
		m, err := pipe.Read(buf[n:])
		if err != nil {
			t.Fatalf("%v after %q", err, buf[:n])
		}
		n += m
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	// The pipe's end: the last process that holds it, the inner one, is gone.
	for {
		if _, err := pipe.Read(make([]byte, 512)); err != nil {
			break
		}
	}
	_ = cmd.Wait()
	nothingLeft(t, string(buf[:n]))

	tmp := envOf(cmd, "TMPDIR")
	if left, _ := filepath.Glob(filepath.Join(tmp, basePrefix+"*")); len(left) != 1 {
		t.Fatalf("the killed run's directory: %v", left)
	}
	if err := sweepStale(tmp, time.Hour); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, basePrefix+"*")); len(left) != 1 {
		t.Fatal("a young directory was swept")
	}
	if err := sweepStale(tmp, 0); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(tmp, basePrefix+"*")); len(left) != 0 {
		t.Fatalf("not swept: %v", left)
	}
}

func TestSweepSparesTheLocked(t *testing.T) {
	Root(t)
	tmp := t.TempDir()
	base, lock, err := makeBase(tmp)
	if err != nil {
		t.Fatal(err)
	}
	if err := sweepStale(tmp, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); err != nil {
		t.Fatal("a live run's directory was swept")
	}
	lock.Close()
	if err := sweepStale(tmp, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(base); !os.IsNotExist(err) {
		t.Fatal("a dead run's directory was kept")
	}
}

func envOf(cmd *exec.Cmd, key string) string {
	value := ""
	for _, kv := range cmd.Env {
		if k, v, _ := strings.Cut(kv, "="); k == key {
			value = v
		}
	}
	return value
}

func TestLeakedCgroups(t *testing.T) {
	root := t.TempDir()
	for _, d := range []string{"a/yoi-t00000001-x", "b/yoi-t00000002"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	got := leakedCgroups(root, "yoi-t00000001")
	if len(got) != 1 || !strings.HasSuffix(got[0], "a/yoi-t00000001-x") {
		t.Fatalf("%q", got)
	}
}

func TestMarkerBase(t *testing.T) {
	const info = "36 35 98:0 / / rw - ext4 /dev/root rw\n" +
		"37 36 0:5 / /tmp/yoi-t01/m rw,nosuid shared:1 - tmpfs yoi-testenv rw\n"
	if got := markerBase(info); got != "/tmp/yoi-t01" {
		t.Errorf("%q", got)
	}
	if got := markerBase("37 36 0:5 / /a/m rw - tmpfs tmpfs rw,x=yoi-testenv\n"); got != "" {
		t.Errorf("%q", got)
	}
}
