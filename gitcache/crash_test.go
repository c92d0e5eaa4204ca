package gitcache

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/internal/testenv"
)

// child starts an operation on root in another process, in a group of its own.
func child(t *testing.T, op, root, source string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), envChild+"="+op, "CHILD_ROOT="+root, "CHILD_SOURCE="+source)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// A kill at any moment of the first use, of a fetch, and of a build must heal
// on the next use, and leave nothing behind.
func TestKilledAnywhere(t *testing.T) {
	repo := testenv.RepoFilesCheckedOut(t, 800)
	full := measure(t, repo.Dir)
	const points = 20
	for i := range points {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			f := newFixture(t)
			cmd := child(t, "pristine", f.root, repo.Dir)
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			time.Sleep(full * time.Duration(i+1) / points)
			// Only the process itself in every other run: its git must not go on
			// writing under the successor's hands.
			target := cmd.Process.Pid
			if i%2 == 0 {
				target = -target
			}
			_ = unix.Kill(target, unix.SIGKILL)
			_ = cmd.Wait()
			healed(t, f, repo)
		})
	}
}

func measure(t *testing.T, source string) time.Duration {
	start := time.Now()
	cmd := child(t, "pristine", t.TempDir(), source)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return time.Since(start)
}

func healed(t *testing.T, f *fixture, repo testenv.Repo) {
	t.Helper()
	p := f.resolve(f.source(repo.Dir), "HEAD")
	tree, _ := f.pristine(p)
	if out := testenv.Git(t, repo.Dir, "ls-files"); strings.Count(out, "\n")+1 != tree.Entries {
		t.Errorf("%d entries, want %d", tree.Entries, strings.Count(out, "\n")+1)
	}
	checkClean(t, f, p)
	run(t, "git", "--git-dir="+f.bare(string(p.RepositoryID)), "fsck")
	noLeftovers(t, f)
}

func noLeftovers(t *testing.T, f *fixture) {
	t.Helper()
	err := filepath.WalkDir(filepath.Join(f.root, "repository-cache"), func(path string, d os.DirEntry, err error) error {
		name := d.Name()
		if strings.HasPrefix(name, ".tmp-") || strings.HasPrefix(name, "tmp_") || strings.HasPrefix(name, brokenPrefix) ||
			(strings.HasSuffix(name, ".lock") && strings.Contains(path, "bare.git")) || strings.Contains(path, "pending/") {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Error(err)
	}
	if held := f.journal.list(); len(held) != 0 {
		t.Errorf("held: %q", held)
	}
}

func TestKilledFetch(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoFilesCheckedOut(t, 800)
	src := f.source(repo.Dir)
	f.resolve(src, "HEAD")
	for i := range 12 {
		for j := range 50 {
			write(t, filepath.Join(repo.Dir, fmt.Sprintf("n%d-%d", i, j)), strings.Repeat(fmt.Sprint(i, j), 1000))
		}
		repo.Git(t, "add", ".")
		repo.Git(t, "commit", "--quiet", "-m", fmt.Sprint(i))
		repo.Git(t, "branch", fmt.Sprintf("b%d", i))
		cmd := child(t, "fetch", f.root, repo.Dir)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(i+1) * 4 * time.Millisecond)
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL)
		_ = cmd.Wait()
		if i%3 == 2 {
			healed(t, f, repo)
		}
	}
}

// A git that outlives its parent keeps the lock: the next user must wait.
func TestLockIsInherited(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(f.root, "lock")
	l, err := lock(t.Context(), path, unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	sleep := exec.Command("sleep", "60")
	sleep.ExtraFiles = []*os.File{l.f}
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	l.f.Close() // as the kernel does when this process is killed: no LOCK_UN
	if _, err := lock(t.Context(), path, unix.LOCK_EX|unix.LOCK_NB); err != errLocked {
		t.Errorf("lock: %v", err)
	}
	_ = sleep.Process.Kill()
	_ = sleep.Wait()
	if l, err = lock(t.Context(), path, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		t.Errorf("lock: %v", err)
	}
	l.unlock()
}

func TestProcessesShareOneBuild(t *testing.T) {
	repo := testenv.RepoFilesCheckedOut(t, 800)
	f := newFixture(t)
	var wg sync.WaitGroup
	outs := make([]string, 8)
	for i := range outs {
		cmd := child(t, "pristine", f.root, repo.Dir)
		wg.Go(func() {
			out, err := cmd.CombinedOutput()
			outs[i] = string(out)
			if err != nil {
				t.Errorf("%v: %s", err, out)
			}
		})
	}
	wg.Wait()
	built := 0
	for _, out := range outs {
		if !strings.Contains(out, "spawns=1\n") { // the others ask the source alone
			built++
		}
	}
	if built > 2 { // one makes the mirror; perhaps another one the tree
		t.Errorf("%d processes did the work:\n%s", built, strings.Join(outs, ""))
	}
	healed(t, f, repo)
}

func TestConcurrentFetchesAreShared(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoFilesCheckedOut(t, 800)
	src := f.source(repo.Dir)
	if _, err := f.Fetch(t.Context(), src); err != nil {
		t.Fatal(err)
	}
	started := (&repo1{f}).state().Started
	l, err := lock(t.Context(), f.path("repository-cache/git/"+string(src.ID)+"/lock"), unix.LOCK_EX)
	if err != nil {
		t.Fatal(err)
	}
	const callers = 10
	shared := make(chan bool, callers)
	var wg sync.WaitGroup
	for i := range callers {
		if i%2 == 0 {
			cmd := child(t, "fetch", f.root, repo.Dir)
			wg.Go(func() {
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Errorf("%v: %s", err, out)
				}
				shared <- strings.Contains(string(out), "shared=true")
			})
			continue
		}
		wg.Go(func() {
			rep, err := f.Fetch(t.Context(), src)
			if err != nil {
				t.Error(err)
			}
			shared <- rep.Shared
		})
	}
	time.Sleep(500 * time.Millisecond) // all of them are waiting
	l.unlock()
	wg.Wait()
	close(shared)
	n := 0
	for s := range shared {
		if s {
			n++
		}
	}
	if got := (&repo1{f}).state().Started - started; n != callers-1 || got != 1 {
		t.Errorf("%d of %d were shared, %d fetches", n, callers, got)
	}
}

type repo1 struct{ f *fixture }

func (r *repo1) state() state {
	r.f.t.Helper()
	entries, err := os.ReadDir(r.f.dir)
	if err != nil || len(entries) != 1 {
		r.f.t.Fatalf("%v %v", entries, err)
	}
	return (&repo{c: r.f.Cache, dir: filepath.Join(r.f.dir, entries[0].Name())}).readState()
}

func TestCancel(t *testing.T) {
	f := newFixture(t)
	repo := testenv.RepoFilesCheckedOut(t, 800)
	src := f.source(repo.Dir)
	for _, ms := range []int{1, 10, 30, 60} {
		ctx, cancel := contextWithTimeout(t, time.Duration(ms)*time.Millisecond)
		if _, err := f.Fetch(ctx, src); err != nil {
			wantCode(t, err, "canceled")
		}
		cancel()
	}
	healed(t, f, repo)
}
