package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// room is where one section measures: a testing.TB outside of `go test`, for
// the file systems and repositories of testenv. A failure ends the section by
// a panic, and everything made in the room is undone in reverse order.
type room struct {
	testing.TB // nil: TB has an unexported method that only embedding provides

	ctx   context.Context
	quick bool
	rows  []row
	facts []fact

	mu      sync.Mutex
	cleanup []func()
	errs    []string
}

// failure is the panic of a failed section.
type failure struct{ error }

func inRoom(ctx context.Context, quick bool, s section) (rows []row, facts []fact, err error) {
	r := &room{ctx: ctx, quick: quick}
	defer func() {
		err = r.leave(err)
		rows, facts = r.rows, r.facts
		for i := range rows {
			rows[i].Row = s.row
		}
	}()
	defer func() {
		switch p := recover().(type) {
		case nil:
		case failure:
			err = p.error
		default:
			panic(p)
		}
	}()
	s.run(r)
	return nil, nil, nil
}

// leave undoes what was made, whatever fails on the way.
func (r *room) leave(err error) error {
	for _, f := range slices.Backward(r.cleanup) {
		func() {
			defer func() {
				if p, ok := recover().(failure); ok && err == nil {
					err = p.error
				}
			}()
			f()
		}()
	}
	if err == nil && len(r.errs) > 0 {
		err = fmt.Errorf("%s", r.errs[0])
	}
	return err
}

func (r *room) Helper()          {}
func (r *room) Name() string     { return "bench" }
func (r *room) Cleanup(f func()) { r.cleanup = append(r.cleanup, f) }
func (r *room) Fatal(a ...any)   { panic(failure{fmt.Errorf("%s", fmt.Sprint(a...))}) }
func (r *room) Fatalf(format string, a ...any) {
	panic(failure{fmt.Errorf(format, a...)})
}
func (r *room) Logf(format string, a ...any)  { fmt.Fprintf(os.Stderr, "  "+format+"\n", a...) }
func (r *room) Skipf(format string, a ...any) { r.Fatalf(format, a...) }
func (r *room) Skip(a ...any)                 { r.Fatal(a...) }
func (r *room) Error(a ...any)                { r.Errorf("%s", fmt.Sprint(a...)) }
func (r *room) Errorf(format string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.errs = append(r.errs, fmt.Sprintf(format, a...))
}

// TempDir is a directory on the machine's disk.
func (r *room) TempDir() string {
	dir, err := os.MkdirTemp("", "room")
	r.must(err)
	r.must(os.Chmod(dir, 0o755))
	r.Cleanup(func() { r.must(os.RemoveAll(dir)) })
	return dir
}

func (r *room) must(err error) {
	if err != nil {
		r.Fatal(err)
	}
}

// fs is a file system of its own on the machine's disk.
func (r *room) fs(kind string, sizeMiB int) string {
	fmt.Fprintf(os.Stderr, "  on %s\n", kind)
	return testenv.FSWith(r, kind, sizeMiB, testenv.FSOptions{OnDisk: true})
}

// runs is how often to measure: n, or a third of it for a quick look.
func (r *room) runs(n int) int {
	if r.quick {
		return max(3, n/3)
	}
	return n
}

// command is a program of the machine's, without input, that dies with us.
func (r *room) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

// do runs a program that must succeed and returns its output.
func (r *room) do(name string, args ...string) string {
	out, err := r.command(name, args...).CombinedOutput()
	if err != nil {
		r.Fatalf("%s: %v\n%s", filepath.Base(name), err, out)
	}
	return string(out)
}
