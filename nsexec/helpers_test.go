package nsexec

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/policy"
)

// systemPlan is a root like the runtime's: the host's programs read-only, a
// private /tmp, /dev and /proc.
func systemPlan(extra ...mounts.Op) mounts.Plan {
	ro := mounts.Attr{ReadOnly: true, NoSuid: true, NoDev: true}
	ops := []mounts.Op{
		mounts.Bind{Target: "/usr", Source: mounts.Source{Path: "/usr"}, Recursive: true, Attr: ro},
	}
	for _, d := range []string{"/bin", "/sbin", "/lib", "/lib64", "/lib32", "/libx32"} {
		fi, err := os.Lstat(d)
		if err != nil {
			continue
		}
		if fi.Mode()&os.ModeSymlink != 0 {
			to, _ := os.Readlink(d)
			ops = append(ops, mounts.Symlink{Target: d, To: to})
		} else {
			ops = append(ops, mounts.Bind{Target: d, Source: mounts.Source{Path: d}, Recursive: true, Attr: ro})
		}
	}
	ops = append(ops,
		mounts.Proc{Target: "/proc"},
		mounts.Dev{Target: "/dev", ShmBytes: 16 << 20},
		mounts.Tmpfs{Target: "/tmp", Mode: 0o1777, SizeBytes: 16 << 20, Attr: mounts.Attr{NoSuid: true, NoDev: true}},
		mounts.File{Target: "/etc/passwd", Mode: 0o444, Content: []byte("worker:x:1000:1000::/home/worker:/bin/sh\n")},
	)
	return mounts.Plan{Ops: append(ops, extra...)}
}

// rangeMap is what the daemon gives one Worker: 65536 ids of its own.
func rangeMap() []IDMap { return []IDMap{{Inside: 0, Outside: 0x70010000, Count: 65536}} }

// newSpec is a sandbox for argv in the mode that the test process can have:
// an id range as root, the caller's own id otherwise.
func newSpec(argv ...string) *Spec {
	s := &Spec{Argv: argv, Env: []string{"PATH=/usr/bin:/bin", "LC_ALL=C"}, Plan: systemPlan()}
	if os.Geteuid() == 0 {
		s.UIDMap, s.GIDMap = rangeMap(), rangeMap()
	}
	return s
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// run launches s with its stdout and stderr captured and waits for its end.
func run(t testing.TB, s *Spec) (string, Outcome) {
	t.Helper()
	out, o, err := tryRun(t, s)
	if err != nil {
		t.Fatalf("launch: %v", err)
	}
	return out, o
}

func tryRun(t testing.TB, s *Spec) (string, Outcome, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	own := *s // the pipe is this run's
	s = &own
	for i := 1; i < 3; i++ {
		if s.Stdio[i] == nil && !s.Terminal && s.Logs.Dir == (mounts.Source{}) {
			s.Stdio[i] = w
		}
	}
	ctx := testContext(t)
	p, err := Launch(ctx, s)
	w.Close()
	if err != nil {
		return "", Outcome{}, err
	}
	var b bytes.Buffer
	if _, err := io.Copy(&b, r); err != nil {
		t.Fatal(err)
	}
	o, err := p.Wait(ctx)
	if err != nil {
		t.Fatalf("wait: %v", err)
	}
	return b.String(), o, nil
}

// sh runs a shell script in the sandbox and returns its output, trimmed.
func sh(t testing.TB, script string) string {
	t.Helper()
	out, o := run(t, newSpec("/bin/sh", "-c", script))
	if o.Signal != 0 || o.Lost {
		t.Fatalf("script ended by signal %d (lost %v): %s", o.Signal, o.Lost, out)
	}
	return strings.TrimSpace(out)
}

func wantCode(t testing.TB, err error, code policy.Code) {
	t.Helper()
	if !errors.Is(err, code) {
		t.Fatalf("error %v, want code %s", err, code)
	}
}
