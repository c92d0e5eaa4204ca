package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
)

const envAsUser = "YOI_TESTENV_AS"

// AsUser runs body as the ordinary user uid, in a process of its own: the test
// binary started again for this one test. Everything before the call runs
// there too, as that user, so AsUser comes first in a test. Without root the
// caller is an ordinary user already and body runs in place.
func AsUser(t *testing.T, uid int, body func(t *testing.T)) {
	t.Helper()
	AsUserWith(t, uid, func() []string { return nil }, body)
}

// AsUserWith is AsUser with a step for the privileged side before: what
// prepare makes (files chowned to uid, say) stays until the test ends, and the
// NAME=VALUE strings it returns are in body's environment. Without root
// prepare runs in place too.
func AsUserWith(t *testing.T, uid int, prepare func() []string, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(envAsUser) == t.Name() {
		body(t)
		return
	}
	if os.Geteuid() != 0 {
		for _, kv := range prepare() {
			k, v, _ := strings.Cut(kv, "=")
			t.Setenv(k, v)
		}
		body(t)
		return
	}
	Root(t)
	env := prepare()
	cmd := UserCommand(t, uid, testBinary(t), "-test.run="+exactly(t.Name()), "-test.v=true", "-test.count=1")
	cmd.Env = append(append(cmd.Env, env...), envAsUser+"="+t.Name())
	out, err := cmd.CombinedOutput()
	// Marked, or `go test -json` would take the child's lines for its own.
	reportTo(t, t.Name(), uid, "| "+strings.ReplaceAll(string(out), "\n", "\n| "), err)
}

// reporter is the part of testing.T that the child's result goes to.
type reporter interface {
	Helper()
	Errorf(format string, args ...any)
	Skipf(format string, args ...any)
	Logf(format string, args ...any)
}

// reportTo makes the child's result the test's own. A child that ran nothing
// is a failure: its pattern or its TestMain is wrong.
func reportTo(t reporter, name string, uid int, out string, err error) {
	t.Helper()
	switch {
	case err != nil:
		t.Errorf("as uid %d: %v\n%s", uid, err, out)
	case strings.Contains(out, "--- SKIP: "+name):
		if _, reason, ok := strings.Cut(out, SkipMarker); ok {
			reason, _, _ = strings.Cut(reason, "\n")
			t.Skipf("%s%s", SkipMarker, reason)
			return
		}
		t.Skipf("as uid %d:\n%s", uid, out)
	case !strings.Contains(out, "--- PASS: "+name):
		t.Errorf("as uid %d the test did not run:\n%s", uid, out)
	default:
		t.Logf("as uid %d:\n%s", uid, out)
	}
}

// exactly is the -test.run pattern of one test or subtest.
func exactly(name string) string {
	parts := strings.Split(name, "/")
	for i, p := range parts {
		parts[i] = "^" + regexp.QuoteMeta(p) + "$"
	}
	return strings.Join(parts, "/")
}

// UserCommand is a command that runs as uid, gid the same, without further
// groups or capabilities, with a home and a TMPDIR that are its own.
func UserCommand(t testing.TB, uid int, name string, args ...string) *exec.Cmd {
	t.Helper()
	home := UserDir(t, uid)
	cmd := exec.Command(name, args...)
	cmd.Env = []string{"HOME=" + home, "TMPDIR=" + home, "LANG=C.UTF-8"}
	for _, k := range []string{"PATH", "CI", "GOFLAGS", "GOPROXY", "GOMODCACHE"} {
		if v, ok := os.LookupEnv(k); ok {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)},
	}
	return cmd
}

// UserDir is a directory of mode 0700 that belongs to uid, on a path that
// every user may pass. It is removed with the test.
func UserDir(t testing.TB, uid int) string {
	t.Helper()
	Root(t)
	dir, err := os.MkdirTemp(filepath.Join(baseDir(), "t"), fmt.Sprintf("u%d-", uid))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	return dir
}

// testBinary is a copy of the running test binary that every user can reach:
// `go test` builds into a directory of mode 0700.
func testBinary(t testing.TB) string {
	t.Helper()
	path, err := copyBinary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var copyBinary = sync.OnceValues(func() (string, error) {
	src, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		return "", err
	}
	// Written by a child, so that no descriptor open for writing is in this
	// process when another goroutine forks: the copy would be ETXTBSY
	// (golang/go#22315).
	path := filepath.Join(baseDir(), "m", filepath.Base(os.Args[0]))
	cmd := exec.Command("sh", "-c", `cat >"$1" && chmod 0755 "$1"`, "sh", path)
	cmd.Stdin = strings.NewReader(string(src))
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("copying the test binary: %w: %s", err, out)
	}
	return path, nil
})
